"""Sharding of eager scripts: states, gradients and parameters spread over workers."""

import copy
from pathlib import Path
from typing import Any

from torch import nn

import fleetx
from fleetx import roles
from fleetx.api import session
from fleetx.compat import objects
from fleetx.compat.distribution import DistributedOptimizer, distribute, innermost
from fleetx.compat.groups import chosen, joined
from fleetx.compat.notes import note

LEVELS = {"os": 1, "os_g": 2, "p_g_os": 3}
"""Paddle's name of a level -> how much is spread: states; gradients, too; parameters, too."""

TUNING = {
    "buffer_max_size": 2**23,
    "segment_size": 2**20,
    "sync_comm": False,
    "sync_buffers": False,
    "device": "gpu",
    "auto_refresh_trainable": True,
    "pertrain_sync_models": True,
    "broadcast_fp16": False,
}
"""Options that change no result, and their values in Paddle."""


def group_sharded_parallel(  # noqa: PLR0917 (the order of Paddle)
    model: nn.Module,
    optimizer: Any,
    level: str,
    scaler: Any = None,
    group: Any = None,
    offload: bool = False,
    sync_buffers: bool = False,
    buffer_max_size: int = 2**23,
    segment_size: int = 2**20,
    sync_comm: bool = False,
    dp_group: Any = None,
    exclude_layer: Any = None,
) -> tuple[Any, Any, Any]:
    """Model, optimizer and scaler of which each worker keeps a share."""
    if level not in LEVELS:
        raise ValueError(
            f"group_sharded_parallel(level={level!r}): 'os', 'os_g' or 'p_g_os' is meant."
        )
    _idle(
        buffer_max_size=buffer_max_size,
        segment_size=segment_size,
        sync_comm=sync_comm,
        sync_buffers=sync_buffers,
    )
    if exclude_layer:
        note("group_sharded_parallel(exclude_layer=…)", "all layers are spread; results stay.")
    laid_out, made = _spread(model, optimizer, LEVELS[level], group, offload)
    if scaler is not None:
        scaler.among_all()
    return laid_out, made, scaler


def save_group_sharded_model(model: nn.Module, output: str, optimizer: Any = None) -> None:
    """Write the whole model, and the state of the optimizer; all workers call it."""
    folder = Path(output)
    if folder.is_file():
        raise ValueError(f"save_group_sharded_model(output={output!r}) is a file; name a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    state = objects.whole(model.state_dict())
    rest = None if optimizer is None else objects.whole(optimizer.state_dict())
    if roles.is_first_worker():
        objects.save(state, str(folder / "model.pdmodel"))
        if rest is not None:
            objects.save(rest, str(folder / "model.pdopt"))


def _spread(
    model: nn.Module, optimizer: Any, stage: int, group: Any, offload: bool
) -> tuple[Any, DistributedOptimizer]:
    joined()
    began = session.current("group_sharded_parallel")
    before = began.strategy
    strategy: Any = copy.deepcopy(before)
    strategy.sharding = True
    options: dict[str, Any] = {"stage": stage, "optimize_offload": offload}
    if group is not None and chosen(group).nranks < roles.worker_num():
        options["sharding_degree"] = chosen(group).nranks
    strategy.sharding_configs = options
    # For this model alone: a script may train others in other ways.
    began.strategy = strategy
    try:
        laid_out = fleetx.distributed_model(model)
        return laid_out, distribute(optimizer)
    finally:
        began.strategy = before


def _idle(**given: Any) -> None:
    for name, value in given.items():
        if name not in TUNING:
            raise TypeError(f"sharding has no option {name!r}")
        if value != TUNING[name]:
            note(f"sharding({name}={value!r})", "torch cuts and sends as it finds best.")


class ShardingOptimizer:
    """An optimizer whose state is spread; that happens together with its model."""

    def __init__(self, optimizer: Any, *, offload: bool = False) -> None:
        self._optimizer, self.offload = optimizer, offload

    @property
    def _inner_optimizer(self) -> Any:
        return innermost(self)

    _optim = _inner_optimizer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)


class ShardingOptimizerStage2(ShardingOptimizer):
    """``GroupShardedOptimizerStage2``, and its older name."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        params: Any,
        optim: Any,
        group: Any = None,
        offload: bool = False,
        device: str = "gpu",
        pertrain_sync_models: bool = True,
        dp_group: Any = None,
        **tuning: Any,
    ) -> None:
        _idle(device=device, pertrain_sync_models=pertrain_sync_models, **tuning)
        super().__init__(optim, offload=offload)


class DygraphShardingOptimizer(ShardingOptimizer):
    """An optimizer and the place in the job, or the parts of both, as Paddle 2.1 wanted them."""

    def __init__(
        self,
        optimizer: Any = None,
        hcg: Any = None,
        user_defined_strategy: Any = None,
        params: Any = None,
        inner_optimizer_class: Any = None,
        **options: Any,
    ) -> None:
        if inner_optimizer_class is not None:
            optimizer = inner_optimizer_class(parameters=params, **options)
        elif options:
            raise TypeError(f"DygraphShardingOptimizer() has no option {', '.join(options)}")
        super().__init__(optimizer)


def sharding_stage_2(  # noqa: PLR0917 (the order of Paddle)
    layer: nn.Module,
    sharding_optimizer: Any,
    group: Any = None,
    sync_buffers: bool = False,
    buffer_max_size: int = 2**23,
    auto_refresh_trainable: bool = True,
    device: str = "gpu",
    dp_group: Any = None,
    **tuning: Any,
) -> Any:
    """``GroupShardedStage2``: gradients and states are spread."""
    _idle(
        sync_buffers=sync_buffers,
        buffer_max_size=buffer_max_size,
        auto_refresh_trainable=auto_refresh_trainable,
        device=device,
        **tuning,
    )
    listed = isinstance(sharding_optimizer, list | tuple)
    given = sharding_optimizer[0] if listed else sharding_optimizer
    return _spread(layer, given, 2, group, getattr(given, "offload", False))[0]


def sharding_stage_3(  # noqa: PLR0917 (the order of Paddle)
    layer: nn.Module,
    optimizer: Any,
    group: Any = None,
    sync_buffers: bool = False,
    device: str = "gpu",
    segment_size: int = 2**20,
    pertrain_sync_models: bool = True,
    offload: bool = False,
    sync_comm: bool = False,
    dp_group: Any = None,
    exclude_layer: Any = None,
    **tuning: Any,
) -> Any:
    """``GroupShardedStage3``: parameters, too."""
    _idle(
        sync_buffers=sync_buffers,
        device=device,
        segment_size=segment_size,
        pertrain_sync_models=pertrain_sync_models,
        sync_comm=sync_comm,
        **tuning,
    )
    return _spread(layer, optimizer, 3, group, offload)[0]
