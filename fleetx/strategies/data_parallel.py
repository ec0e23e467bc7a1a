"""Data parallel: every rank holds the whole model, and gradients are averaged during backward."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from fleetx.comm.reduction import flat, two_level
from fleetx.comm.replicas import start_equal
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.step import Reduce, Step
from fleetx.plan.strategy import Strategy
from fleetx.roles.subgroups import copies, two_levels

ONE_TENSOR_PER_BUCKET = 1e-6
"""A bucket this small (MB) is closed by the first tensor that enters it."""


class DataParallel(Strategy, name="data_parallel"):
    """The carrier of a job that asks for no other; it has no switch."""

    internal = True
    contract = Contract(
        phase=Phase.CARRIER,
        touches=frozenset({"model", "sync", "reduce", "agree"}),
        provides=frozenset({"carrier", "gradient_exchange", "buckets"}),
        reads=frozenset(
            {
                "find_unused_parameters",
                "fuse_all_reduce_ops",
                "fuse_grad_size_in_MB",
                "hierarchical_allreduce_inter_nranks",
                "nccl_comm_num",
                "use_hierarchical_allreduce",
            }
        ),
    )
    _replica: DistributedDataParallel | None = None

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        if job.size("dp") == 1:
            return model
        if not any(p.requires_grad for p in model.parameters()):
            # DDP, which else does this, refuses a model without gradients.
            start_equal(model, job.mesh["dp"].get_group())
            return model
        self._replica = _replicate(model, job)
        replace_forward(model, lambda forward: self._replica)  # type: ignore[arg-type, return-value]
        return model

    @override
    def step(self, step: Step, job: Job) -> Step:
        replica = self._replica
        if replica is None:
            return step
        if step.reduce is not None:
            _refuse_own_reduction(job)
        reduce = step.reduce or _reduction(step, job)
        if reduce is not None:
            replica.register_comm_hook(None, _as_hook(reduce))

        def sync(armed: bool) -> None:
            step.sync(armed)
            replica.require_backward_grad_sync = armed

        def agree(flag: Tensor) -> Tensor:
            flag = flag.detach().clone()
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=job.mesh["dp"].get_group())
            return flag

        return replace(step, sync=sync, reduce=reduce, agree=agree)

    @override
    def exchanges(
        self, known: tuple[Exchange, ...], parameter_bytes: int, mesh: Mapping[str, int]
    ) -> tuple[Exchange, ...]:
        ranks = mesh["dp"]
        if ranks == 1:
            return known
        ring = 2 * (ranks - 1) * parameter_bytes // ranks
        return (
            *known,
            Exchange(
                collective="all-reduce",
                what="gradients",
                when="during the backward of each update",
                sent_bytes=ring,
            ),
        )


class _Shell(nn.Module):
    """Runs the user's own forward, whatever the attribute ``forward`` has become meanwhile.

    The model is shown to DDP but is no child: it would else be its own ancestor, which confuses
    tools that follow the tree of modules.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        vars(self)["_model"] = model
        self._forward: Forward = model.forward

    @override
    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        model: nn.Module = vars(self)["_model"]
        yield from model.named_modules(*args, **kwargs)

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)


def _replicate(model: nn.Module, job: Job) -> DistributedDataParallel:
    fuse = job.option("fuse_all_reduce_ops", bool)
    megabytes = job.option("fuse_grad_size_in_MB", int) if fuse else ONE_TENSOR_PER_BUCKET
    return DistributedDataParallel(
        _Shell(model),
        process_group=job.mesh["dp"].get_group(),
        bucket_cap_mb=megabytes,
        find_unused_parameters=job.option("find_unused_parameters", bool),
        gradient_as_bucket_view=True,
    )


def _reduction(step: Step, job: Job) -> Reduce | None:
    """What averages a bucket; None leaves it to DDP, which needs no Python for the plain case."""
    channels = job.option("nccl_comm_num", int)
    if job.option("use_hierarchical_allreduce", bool):
        levels = two_levels(job.mesh, "dp", _block(job))
        averages = [two_level(*levels, step.wire)]
    elif channels > 1 or step.wire is not None:
        averages = [flat(group, step.wire) for group in copies(job.mesh, "dp", channels)]
    else:
        return None

    def reduce(bucket: GradBucket) -> Future[Tensor]:
        return averages[bucket.index() % len(averages)](bucket.buffer())

    return reduce


def _refuse_own_reduction(job: Job) -> None:
    """Another strategy reduces the buckets, so options about how we would do it have no effect."""
    if job.option("nccl_comm_num", int) > 1 or job.option("use_hierarchical_allreduce", bool):
        raise PlanError(
            "strategy.nccl_comm_num and strategy.use_hierarchical_allreduce say how gradients are "
            "all-reduced, and a strategy of this plan exchanges them in its own way; leave them at "
            "1 and False."
        )


def _block(job: Job) -> int:
    """How many neighbours make the inner level of a hierarchical all-reduce."""
    size, ranks = job.option("hierarchical_allreduce_inter_nranks", int), job.size("dp")
    if size == 1 or ranks % size or size == ranks:
        divisors = [d for d in range(2, ranks) if ranks % d == 0]
        instead = (
            f"set strategy.hierarchical_allreduce_inter_nranks to one of {divisors}"
            if divisors
            else "set strategy.use_hierarchical_allreduce = False"
        )
        raise PlanError(
            f"strategy.hierarchical_allreduce_inter_nranks = {size} does not cut the {ranks} "
            f"workers into equal blocks of at least two; {instead}."
        )
    return size


def _as_hook(reduce: Reduce) -> Callable[[Any, GradBucket], Future[Tensor]]:
    # DDP checks the names and annotations of a hook's arguments.
    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return reduce(bucket)

    return hook
