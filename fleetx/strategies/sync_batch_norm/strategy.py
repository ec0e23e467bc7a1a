"""Synchronised batch normalisation: statistics are those of the samples of all replicas."""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange, ring_bytes
from fleetx.plan.forward import Forward, has_own_forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.share import Share
from fleetx.plan.strategy import Strategy
from fleetx.roles.subgroups import data_group
from fleetx.strategies.sync_batch_norm import batch_norm
from fleetx.torch_internals import BatchNormBase, check_input_dim

PAIR_BYTES = 2 * 4
"""Two numbers in single precision are sent per channel, forward and backward."""
COUNT_BYTES = 4
DECIDED_BY = "sync_batch_norm = True"


class SyncBatchNorm(Strategy, name="sync_batch_norm"):
    """Every BatchNorm layer in training normalises over the global batch, weighted by samples."""

    contract = Contract(
        phase=Phase.LAYOUT, touches=frozenset({"model"}), partners=("dp", "sharding")
    )

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        # Those of other stages are among them: the tree of modules is whole everywhere.
        layers = {name: m for name, m in model.named_modules() if isinstance(m, BatchNormBase)}
        if not layers:
            raise PlanError(
                "strategy.sync_batch_norm = True would change nothing: the model has no BatchNorm "
                "layer. Set strategy.sync_batch_norm = False."
            )
        for name, layer in layers.items():
            _refuse_own_forward(name, layer)
        if job.size("dp") * job.size("sharding") > 1:
            group = data_group(job.mesh)
            for layer in layers.values():
                replace_forward(layer, _synchronised(layer, group, job.device))
        return model

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        ranks = share.mesh["dp"] * share.mesh["sharding"]
        if ranks == 1:
            return known
        if share.trace is not None:
            return (*known, *_of_layers(share, ranks))
        gathered = Exchange(
            collective="all-gather",
            what="mean and variance per BatchNorm channel",
            when="in each training forward",
            sent_bytes=(ranks - 1) * PAIR_BYTES,
            times=None,
            decided_by=DECIDED_BY,
        )
        reduced = Exchange(
            collective="all-reduce",
            what="two sums of gradients per BatchNorm channel",
            when="in each backward",
            sent_bytes=2 * (ranks - 1) * PAIR_BYTES // ranks,
            times=None,
            decided_by=DECIDED_BY,
        )
        return *known, gathered, reduced


def _of_layers(share: Share, ranks: int) -> tuple[Exchange, Exchange]:
    """What the layers exchange that run on a rank; those that were called twice do so twice."""
    assert share.trace is not None
    layers = {
        path: module.num_features
        for path, module in share.subject.shape.named_modules()
        if isinstance(module, BatchNormBase)
    }
    here = [call.path for call in share.trace.calls if call.part in share.parts]
    channels = [layers[path] for path in here if path in layers]
    # With each layer goes how many samples a rank has.
    row = sum(count * PAIR_BYTES + COUNT_BYTES for count in channels)
    gathered = Exchange(
        collective="all-gather",
        what="mean and variance of BatchNorm channels",
        when="in each training forward",
        sent_bytes=(ranks - 1) * row,
        moved_bytes=ranks * row,
        times=share.run.micro_batches * share.run.batches,
        decided_by=DECIDED_BY,
        axis="dp x sharding",
    )
    sums = sum(channels) * PAIR_BYTES
    reduced = replace(
        gathered,
        collective="all-reduce",
        what="two sums of gradients of BatchNorm channels",
        when="in each backward",
        sent_bytes=ring_bytes(sums, ranks),
        moved_bytes=sums,
    )
    return gathered, reduced


def _refuse_own_forward(name: str, layer: nn.Module) -> None:
    own = type(layer).forward not in {BatchNormBase.forward, nn.SyncBatchNorm.forward}
    if own or has_own_forward(layer):
        raise PlanError(
            f"strategy.sync_batch_norm = True cannot be in force for {name!r}: "
            f"{type(layer).__name__} has a forward of its own, which would be lost. Use a layer of "
            "torch.nn there, or set strategy.sync_batch_norm = False."
        )


def _synchronised(
    layer: BatchNormBase, group: dist.ProcessGroup, device: torch.device
) -> Callable[[Forward], Forward]:
    whole = _on_cpu if device.type == "cpu" else _on_accelerator
    training = whole(layer, group)

    def change(plain: Forward) -> Forward:
        return lambda x: training(x) if layer.training else plain(x)

    return change


def _on_accelerator(layer: BatchNormBase, group: dist.ProcessGroup) -> Forward:
    """The kernels of torch's own layer, over the state of ``layer``."""
    twin = nn.SyncBatchNorm(layer.num_features, process_group=group)

    def run(x: Tensor) -> Tensor:
        check_input_dim(layer, x)
        # As of now: options may have been set and buffers exchanged since the last call.
        vars(twin).update(vars(layer) | {"process_group": group})
        return nn.SyncBatchNorm.forward(twin, x)

    return run


def _on_cpu(layer: BatchNormBase, group: dist.ProcessGroup) -> Forward:
    """The same in our own functions: torch's layer refuses the CPU."""

    def run(x: Tensor) -> Tensor:
        check_input_dim(layer, x)
        y, mean, variance, count = batch_norm.normalise(
            x, layer.weight, layer.bias, eps=layer.eps, group=group
        )
        if layer.track_running_stats:
            _track(layer, mean, variance * (count / (count - 1)))
        return y

    return run


def _track(layer: BatchNormBase, mean: Tensor, unbiased: Tensor) -> None:
    share = layer.momentum
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if share is None:
            share = 1.0 / float(layer.num_batches_tracked)
    if layer.running_mean is not None and layer.running_var is not None:
        batch_norm.track(layer.running_mean, mean, share or 0.0)
        batch_norm.track(layer.running_var, unbiased, share or 0.0)
