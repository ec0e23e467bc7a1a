"""The model behind torch's DDP, which averages gradients while a backward goes on."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from fleetx.comm.nested import tensors
from fleetx.plan.error import PlanError
from fleetx.plan.forward import Forward
from fleetx.plan.job import Job
from fleetx.plan.sparse_gradients import refuse_sparse_gradients
from fleetx.plan.step import Reduce, Step
from fleetx.roles import figures
from fleetx.strategies.data_parallel.averaging import UNUSED, reduction
from fleetx.strategies.data_parallel.backwards import Backwards
from fleetx.strategies.data_parallel.by_hand import ByHand
from fleetx.torch_internals import exposed_exchange

ONE_TENSOR_PER_BUCKET = 1e-6
"""A bucket this small (MB) is closed by the first tensor that enters it."""
MEASURED = 5
"""Batches whose exchanges are told of."""

_TWICE = (
    "a backward came after another one without a forward between them, and only the first is "
    "exchanged between workers, which would train apart; add the losses up and call backward once, "
    "or call the model, then backward, for one loss after the other."
)
_BY_HAND = (
    "gradients were put into .grad, and no backward since the last update has brought any: workers "
    "exchange what loss.backward() leaves there, and not what torch.autograd.grad() returns, so "
    "they would train apart. Call loss.backward(), and change .grad afterwards."
)

EXCHANGED_WHOLE = (
    "this plan exchanges gradients in a format, or on a way, of its own, and knows whole ones alone"
)


class _Shell(nn.Module):
    """Runs the user's own forward, whatever the attribute ``forward`` has become meanwhile.

    The model is shown to DDP but is no child: it would else be its own ancestor, which confuses
    tools that follow the tree of modules.

    Args:
        model: the user's.
        shows: whether DDP looks for what a batch does not reach, from tensors that it finds in
            outputs; those in objects of other libraries are then shown to it beside them.
    """

    def __init__(self, model: nn.Module, *, shows: bool) -> None:
        super().__init__()
        vars(self)["_model"] = model
        self._forward: Forward = model.forward
        self.shows = shows

    @override
    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        model: nn.Module = vars(self)["_model"]
        yield from model.named_modules(*args, **kwargs)

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self._forward(*args, **kwargs)
        return (outputs, tensors(outputs)) if self.shows else outputs


def replicate(model: nn.Module, job: Job) -> DistributedDataParallel:
    """DDP around the model's own forward, with buckets as the job's options say."""
    fuse = job.option("fuse_all_reduce_ops", bool)
    megabytes = job.option("fuse_grad_size_in_MB", int) if fuse else ONE_TENSOR_PER_BUCKET
    find = job.option("find_unused_parameters", bool)
    replica = DistributedDataParallel(
        _Shell(model, shows=find),
        process_group=job.mesh["dp"].get_group(),
        bucket_cap_mb=megabytes,
        find_unused_parameters=find,
        gradient_as_bucket_view=True,
    )
    figures.source("exchange", _Exposed(replica))
    return replica


class _Exposed:
    """How long backwards waited for exchanges lately: the mean of what DDP measured last."""

    def __init__(self, replica: DistributedDataParallel) -> None:
        # Weakly, for figures outlive a model that nobody uses any more.
        self._replica = weakref.ref(replica)
        self._measured: deque[float] = deque(maxlen=MEASURED)

    def __call__(self) -> dict[str, float]:
        if (replica := self._replica()) is None:
            return {}
        latest = exposed_exchange(replica)
        if latest not in self._measured:  # else it is the one of the last look
            self._measured.append(latest)
        return {"exchange_seconds": fmean(self._measured)}


def with_gradients(
    replica: DistributedDataParallel, backwards: Backwards, forward: Forward
) -> Forward:
    """Go through the replica when there will be a backward; one worker may evaluate alone."""
    by_hand = ByHand()

    def run(*args: Any, **kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and backwards.possible()):
            return forward(*args, **kwargs)
        _check_repeated(backwards)
        if backwards.left_nothing():
            by_hand.look(replica)
        backwards.forget(armed=replica.require_backward_grad_sync)
        try:
            outputs = replica(*args, **kwargs)
            backwards.watch(outputs[1] if replica.module.shows else tensors(outputs))
            return outputs[0] if replica.module.shows else outputs
        except RuntimeError as error:
            if "find_unused_parameters" in str(error):
                raise PlanError(UNUSED) from error
            raise

    return run


def _check_repeated(backwards: Backwards) -> None:
    if backwards.repeated():
        backwards.forget(armed=False)  # the complaint is made once
        raise PlanError(_TWICE)


def during_backward(
    step: Step, job: Job, replica: DistributedDataParallel, backwards: Backwards
) -> Step:
    """Average the gradients while the backward pass goes on."""
    reduce = step.reduce or reduction(job)
    # Copied after each update instead; with an optimizer that is not distributed, by each forward.
    replica.broadcast_buffers = False
    if reduce is not None:
        refuse_sparse_gradients(job.model, EXCHANGED_WHOLE)
        vars(replica)["_reduce"] = reduce
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
            raise PlanError(UNUSED)
        if backwards.replaced():
            raise PlanError(_BY_HAND)
        moved = step.update()
        backwards.updated()
        return moved

    return replace(step, sync=sync, reduce=reduce, ready=ready, update=update)


def _as_hook(reduce: Reduce) -> Callable[[Any, GradBucket], Future[Tensor]]:
    # The replica holds it. DDP's reducer holds its hook where no search for garbage looks, and what
    # reduces knows the job: model, groups and their threads would stay for good.
    kept = weakref.ref(reduce)

    # DDP checks the names and annotations of a hook's arguments.
    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        reduce = kept()
        assert reduce is not None, "the replica, whose backward this is, is gone"
        return reduce(bucket)

    return hook
