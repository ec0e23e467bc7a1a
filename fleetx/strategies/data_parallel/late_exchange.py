"""Averaging gradients after a backward, where DDP cannot be."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.sparse_gradients import refuse_sparse_gradients
from fleetx.plan.step import Reduce, Step
from fleetx.strategies.data_parallel.averaging import UNUSED, plain_average, reduction
from fleetx.strategies.data_parallel.late_buckets import exchange, fill_missing

THAWED = (
    "requires_grad of a parameter changed after fleet.distributed_model(), and gradients of a "
    "parameter that was frozen then are not exchanged between workers; freeze and thaw before "
    "fleet.distributed_model(), or give late layers a learning rate of 0 until they shall train."
)


def after_backward(step: Step, job: Job, thawed: Callable[[], bool]) -> Step:
    """Average the gradients after the backward pass."""
    refuse_sparse_gradients(job.model, "beside other axes workers exchange whole ones alone")
    reduce = step.reduce or reduction(job) or plain_average(job)
    may_miss = job.option("find_unused_parameters", bool)
    trained: list[Tensor] = [p for p in job.model.parameters() if p.requires_grad]
    found = ""

    def trouble() -> str:
        if thawed():
            return THAWED
        return UNUSED if not may_miss and any(p.grad is None for p in trained) else ""

    def ready(due: bool) -> bool:
        nonlocal found
        if due:
            found = job.hindrance(trouble())
            if found:  # another backward may bring what is missing
                return False
            _exchange(job, trained, reduce)
        return step.ready(due)

    def update() -> bool:
        if found:
            raise PlanError(found)
        return step.update()

    return replace(step, reduce=reduce, ready=ready, update=update)


def _exchange(job: Job, trained: list[Tensor], reduce: Reduce) -> None:
    if job.option("find_unused_parameters", bool):
        trained = fill_missing(trained, job.mesh["dp"].get_group())
    megabytes = job.option("fuse_grad_size_in_MB", int)
    limit = megabytes * 2**20 if job.option("fuse_all_reduce_ops", bool) else 1
    exchange(trained, reduce, limit)
