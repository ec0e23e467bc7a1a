"""Data parallel: every rank holds the whole model, and gradients are averaged during backward."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from fleetx.plan.contract import Contract, Phase
from fleetx.plan.exchange import Exchange
from fleetx.plan.job import Job
from fleetx.plan.step import Step
from fleetx.plan.strategy import Strategy

ONE_TENSOR_PER_BUCKET = 1e-6
"""A bucket this small (MB) is closed by the first tensor that enters it."""


class DataParallel(Strategy, name="data_parallel"):
    """The carrier of a job that asks for no other; it has no switch."""

    internal = True
    contract = Contract(
        phase=Phase.CARRIER,
        touches=frozenset({"model", "sync"}),
        provides=frozenset({"carrier", "buckets"}),
        reads=frozenset({"fuse_all_reduce_ops", "fuse_grad_size_in_MB", "find_unused_parameters"}),
    )
    _replica: DistributedDataParallel | None = None

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        if job.size("dp") == 1:
            return model
        if not any(p.requires_grad for p in model.parameters()):
            _copy_from_first_rank(model, job.mesh["dp"].get_group())
            return model
        self._replica = _replicate(model, job)
        # The attribute shadows the method, so the user keeps module, names and attributes.
        model.forward = _ReplicatedForward(model, self._replica)
        return model

    @override
    def step(self, step: Step, job: Job) -> Step:
        replica = self._replica
        if replica is None:
            return step
        if (reduce := step.reduce) is not None:
            replica.register_comm_hook(None, _as_hook(reduce))

        def sync(armed: bool) -> None:
            step.sync(armed)
            replica.require_backward_grad_sync = armed

        return replace(step, sync=sync)

    @override
    def exchanges(self, parameter_bytes: int, mesh: Mapping[str, int]) -> tuple[Exchange, ...]:
        ranks = mesh["dp"]
        if ranks == 1:
            return ()
        ring = 2 * (ranks - 1) * parameter_bytes // ranks
        return (
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
        self._forward: Callable[..., Any] = model.forward

    @override
    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        model: nn.Module = vars(self)["_model"]
        yield from model.named_modules(*args, **kwargs)

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)


class _ReplicatedForward:
    """Stands in for ``model.forward`` and goes through the replica.

    Copies and pickles of the model get the plain method back: a copy is no replica.
    """

    def __init__(self, model: nn.Module, replica: DistributedDataParallel) -> None:
        self._model, self._replica = model, replica

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._replica(*args, **kwargs)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _plain_forward, (self._model,)


def _plain_forward(model: nn.Module) -> Any:
    return MethodType(type(model).forward, model)


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


def _as_hook(
    reduce: Callable[[GradBucket], Future[Tensor]],
) -> Callable[[Any, GradBucket], Future[Tensor]]:
    # DDP checks the names and annotations of a hook's arguments.
    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return reduce(bucket)

    return hook


def _copy_from_first_rank(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Make ranks equal where DDP, which does the same, refuses a model without gradients."""
    first = dist.get_global_rank(group, 0)
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=first, group=group)
