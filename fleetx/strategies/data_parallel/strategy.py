"""Data parallel: every rank holds the whole model, and gradients are averaged during backward."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from fleetx.comm.reduction import dealt, flat, two_level
from fleetx.comm.replicas import copy_from_first_rank, start_equal
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange, ring_bytes
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.step import Reduce, Step, largest_over
from fleetx.plan.strategy import Plan, Strategy
from fleetx.roles.subgroups import copies, two_levels
from fleetx.strategies.data_parallel.backwards import Backwards
from fleetx.strategies.data_parallel.late_buckets import exchange, fill_missing

logger = logging.getLogger(__name__)

ONE_TENSOR_PER_BUCKET = 1e-6
"""A bucket this small (MB) is closed by the first tensor that enters it."""

_THAWED = (
    "requires_grad of a parameter changed after fleet.distributed_model(), and gradients of a "
    "parameter that was frozen then are not exchanged between workers; freeze and thaw before "
    "fleet.distributed_model(), or give late layers a learning rate of 0 until they shall train."
)
_UNUSED = (
    "the last batch did not reach every parameter, so workers wait for gradients that never come; "
    "set strategy.find_unused_parameters = True, or freeze those parameters before "
    "fleet.distributed_model()."
)
_TWICE = (
    "a backward came after another one without a forward between them, and only the first is "
    "exchanged between workers, which would train apart; add the losses up and call backward once, "
    "or call the model, then backward, for one loss after the other."
)


class DataParallel(Strategy, name="data_parallel"):
    """The carrier of a job that asks for no other; it has no switch."""

    internal = True
    contract = Contract(
        phase=Phase.CARRIER,
        touches=frozenset({"model", "sync", "reduce", "ready", "agree", "update", "settle"}),
        provides=frozenset({"carrier", "gradient_exchange", "buckets"}),
        partners=("dp",),
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
    _backwards: Backwards | None = None

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        model.to(job.device)
        if job.size("dp") == 1:
            return model
        if job.size("pp") * job.size("tp") > 1:
            # DDP knows neither tensors that are spread over ranks nor the order of a pipeline.
            start_equal(model, job.mesh["dp"].get_group())
            return model
        if not any(p.requires_grad for p in model.parameters()):
            # DDP, which else does this, refuses a model without gradients.
            start_equal(model, job.mesh["dp"].get_group())
            return model
        copy_from_first_rank(model.buffers(), job.mesh["dp"].get_group())
        self._replica = replica = _replicate(model, job)
        self._backwards = Backwards(replica, [p for p in model.parameters() if p.requires_grad])
        replace_forward(model, partial(_with_gradients, replica, self._backwards))
        return model

    @override
    def examine(self, plan: Plan) -> None:
        if plan.mesh["dp"] > 1:
            _examine(plan, others=[s for s in plan.strategies if s is not self])

    @override
    def step(self, step: Step, job: Job) -> Step:
        if job.size("dp") == 1 or not any(p.requires_grad for p in job.model.parameters()):
            return step
        group, parameters = job.mesh["dp"].get_group(), list(job.model.parameters())
        trained = [p.requires_grad for p in parameters]

        def thawed() -> bool:
            return trained != [p.requires_grad for p in parameters]

        def sync(armed: bool) -> None:
            step.sync(armed)
            if thawed():
                raise PlanError(_THAWED)

        def settle(loss: Tensor | None) -> None:
            step.settle(loss)
            # Running statistics are those of the first rank, on every rank and at any time, so
            # that one worker alone can evaluate or save.
            copy_from_first_rank(job.model.buffers(), group)

        stateful = next(job.model.buffers(), None) is not None
        settle_all = settle if stateful else step.settle
        common = replace(step, agree=largest_over(step.agree, group), settle=settle_all)
        if self._replica is None or self._backwards is None:
            return _late(common, job, thawed)
        return _early(replace(common, sync=sync), job, self._replica, self._backwards)

    @override
    def at_update(self, job: Job) -> tuple[str, ...]:
        """Nothing in the plain case: DDP exchanges during backward, whoever steps."""
        if job.size("dp") == 1:
            return ()
        if job.size("pp") * job.size("tp") > 1:
            return ("the exchange of gradients between workers",)
        usual = {"nccl_comm_num": 1, "use_hierarchical_allreduce": False}
        return tuple(f"strategy.{name}" for name in usual if job.options[name] != usual[name])

    @override
    def exchanges(
        self, known: tuple[Exchange, ...], parameter_bytes: int, mesh: Mapping[str, int]
    ) -> tuple[Exchange, ...]:
        ranks = mesh["dp"]
        if ranks == 1:
            return known
        ring = ring_bytes(parameter_bytes, ranks)
        return (
            *known,
            Exchange(
                collective="all-reduce",
                what="gradients",
                when="during the backward of each update",
                sent_bytes=ring,
                wide_bytes=ring,
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


def _with_gradients(
    replica: DistributedDataParallel, backwards: Backwards, forward: Forward
) -> Forward:
    """Go through the replica when there will be a backward; one worker may evaluate alone."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        _check_repeated(backwards)
        backwards.forget(armed=replica.require_backward_grad_sync)
        try:
            return replica(*args, **kwargs)
        except RuntimeError as error:
            if "find_unused_parameters" in str(error):
                raise PlanError(_UNUSED) from error
            raise

    return run


def _check_repeated(backwards: Backwards) -> None:
    if backwards.repeated():
        backwards.forget(armed=False)  # the complaint is made once
        raise PlanError(_TWICE)


def _early(step: Step, job: Job, replica: DistributedDataParallel, backwards: Backwards) -> Step:
    """Average the gradients while the backward pass goes on."""
    reduce = step.reduce or _reduction(job)
    # Copied after each update instead; with an optimizer that is not distributed, by each forward.
    replica.broadcast_buffers = False
    if reduce is not None:
        replica.register_comm_hook(None, _as_hook(reduce))

    def sync(armed: bool) -> None:
        step.sync(armed)
        if replica.require_backward_grad_sync is not armed:  # setting it is not for free
            replica.require_backward_grad_sync = armed

    def ready(due: bool) -> bool:
        # While DDP waits for a gradient, others may be under way and must be left alone.
        return not backwards.unfinished() and step.ready(due)

    def update() -> bool:
        _check_repeated(backwards)
        if backwards.unfinished():
            raise PlanError(_UNUSED)
        moved = step.update()
        backwards.updated()
        return moved

    return replace(step, sync=sync, reduce=reduce, ready=ready, update=update)


def _late(step: Step, job: Job, thawed: Callable[[], bool]) -> Step:
    """Average the gradients after the backward pass."""
    reduce = step.reduce or _reduction(job) or _plainly(job)
    may_miss = job.option("find_unused_parameters", bool)
    trained: list[Tensor] = [p for p in job.model.parameters() if p.requires_grad]
    found = ""

    def trouble() -> str:
        if thawed():
            return _THAWED
        return _UNUSED if not may_miss and any(p.grad is None for p in trained) else ""

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


def _plainly(job: Job) -> Reduce:
    average = flat(job.mesh["dp"].get_group(), job.wire)
    return lambda bucket: average(bucket.buffer())


def _reduction(job: Job) -> Reduce | None:
    """What averages a bucket; None leaves it to DDP, which needs no Python for the plain case."""
    channels = job.option("nccl_comm_num", int)
    if job.option("use_hierarchical_allreduce", bool):
        block = job.option("hierarchical_allreduce_inter_nranks", int)
        averages = [two_level(*two_levels(job.mesh, "dp", block), job.wire)]
    elif channels > 1 or job.wire is not None:
        averages = [flat(group, job.wire) for group in copies(job.mesh, "dp", channels)]
    else:
        return None
    # DDP keeps it where no search for garbage comes, so that it must not hold the job.
    return dealt(averages, partial(_say_idle, channels, job.mesh.get_rank() == 0))


def _say_idle(channels: int, is_first: bool, buckets: int) -> None:
    """Communicators that nothing is dealt to; known when there are gradients, said by one."""
    if buckets < channels and is_first:
        idle = f"{channels - max(1, buckets)} of the {channels} communicators"
        logger.warning(
            "At rest: %s of strategy.nccl_comm_num, because the gradients travel in %d bucket%s "
            "and each goes to one of them; set nccl_comm_num = %d, a smaller fuse_grad_size_in_MB, "
            "or fuse_all_reduce_ops = False.",
            idle,
            buckets,
            "s" * (buckets != 1),
            buckets,
        )


def _examine(plan: Plan, others: list[Strategy]) -> None:
    """Refuse options about the all-reduce that would have no effect, or cannot be had."""
    options, ranks = plan.options, plan.mesh["dp"]
    encoded = any("reduce" in strategy.contract.touches for strategy in others)
    channels = options.get("nccl_comm_num", 1)
    two_level = options.get("use_hierarchical_allreduce", False)
    block = options.get("hierarchical_allreduce_inter_nranks", 1)
    megabytes = options.get("fuse_grad_size_in_MB", 32)
    if encoded and (channels > 1 or two_level):
        raise PlanError(
            "strategy.nccl_comm_num and strategy.use_hierarchical_allreduce say how gradients are "
            "all-reduced, and a strategy of this plan exchanges them in its own way; leave them at "
            "1 and False."
        )
    if two_level and channels > 1:
        raise PlanError(
            f"strategy.nccl_comm_num = {channels} deals all-reduces out to communicators, and "
            "strategy.use_hierarchical_allreduce has its own; leave nccl_comm_num at 1."
        )
    if block > 1 and not two_level:
        raise PlanError(
            f"strategy.hierarchical_allreduce_inter_nranks = {block} needs "
            "strategy.use_hierarchical_allreduce = True; set it, or leave the block at 1."
        )
    if not options.get("fuse_all_reduce_ops", True) and megabytes != 32:
        raise PlanError(
            f"strategy.fuse_grad_size_in_MB = {megabytes} is the size of a bucket, and "
            "strategy.fuse_all_reduce_ops = False has none; leave it at 32."
        )
    if two_level:
        _check_block(block, ranks)


def _check_block(size: int, ranks: int) -> None:
    """Neighbours that make the inner level must be more than one and fewer than all."""
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


def _as_hook(reduce: Reduce) -> Callable[[Any, GradBucket], Future[Tensor]]:
    # DDP checks the names and annotations of a hook's arguments.
    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return reduce(bucket)

    return hook
