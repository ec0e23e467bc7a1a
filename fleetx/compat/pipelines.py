"""``PipelineLayer``: a model as a list of layers, over the workers of a pipeline."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

import fleetx
from fleetx.api import session
from fleetx.compat.distribution import DistributedOptimizer
from fleetx.compat.notes import note
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.optimizer.lr import LRScheduler
from fleetx.compat.plain import plain
from fleetx.compat.tensors import wrap


class LayerDesc:
    """A layer that is made later."""

    def __init__(self, layer_func: Callable[..., Any], *inputs: Any, **kwargs: Any) -> None:
        self.layer_func, self.inputs, self.kwargs = layer_func, inputs, kwargs

    def build_layer(self) -> Any:
        """The layer."""
        return self.layer_func(*self.inputs, **self.kwargs)

    @override
    def __repr__(self) -> str:
        return f"LayerDesc({self.layer_func!r}, {self.inputs!r}, {self.kwargs!r})"


class SharedLayerDesc(LayerDesc):
    """A layer that stands in several places with one set of weights."""

    def __init__(
        self,
        key: str,
        layer_func: Callable[..., Any],
        forward_func: Callable[..., Any] | None = None,
        shared_weight_attr: str = "weight",
        *inputs: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(layer_func, *inputs, **kwargs)
        self.layer_name, self.forward_func = key, forward_func
        self.shared_weight_attr = shared_weight_attr


class _Called(Layer):
    """A function, or a shared layer used in another way, as a layer."""

    def __init__(self, function: Callable[..., Any], layer: nn.Module | None = None) -> None:
        super().__init__("pipeline_function")
        vars(self)["_function"] = function
        self.shared = layer

    @override
    def forward(self, *inputs: Any) -> Any:
        """What the function makes of it."""
        function = vars(self)["_function"]
        return function(*inputs) if self.shared is None else function(self.shared, *inputs)


class PipelineLayer(Layer):
    """Layers one after the other; every worker makes all of them and trains its own."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        layers: Sequence[Any],
        num_stages: int | None = None,
        topology: Any = None,
        loss_fn: Callable[..., Any] | None = None,
        seg_method: str = "uniform",
        recompute_interval: int = 0,
        recompute_ctx: Any = None,
        num_virtual_pipeline_stages: int | None = None,
    ) -> None:
        super().__init__()
        if recompute_interval:
            note("PipelineLayer(recompute_interval=...)", "set strategy.recompute to save memory.")
        if seg_method != "uniform":
            note(f"PipelineLayer(seg_method={seg_method!r})", "stages are balanced by their work.")
        vars(self)["_loss_fn"] = loss_fn
        self._num_stages = num_stages
        shared: dict[str, nn.Module] = {}
        self.run_function = nn.ModuleList(_Stage(_made(desc, shared)) for desc in layers)

    @override
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With tensors of torch, which pipelines send."""
        return nn.Module.__call__(self, *args, **kwargs)

    @override
    def forward(self, input: Any) -> Any:
        """One layer after the other."""
        made = input
        for stage in self.run_function:
            made = stage(made)
        return made

    @property
    def loss_fn(self) -> Callable[..., Any] | None:
        """Outputs and labels -> loss."""
        found: Callable[..., Any] | None = vars(self)["_loss_fn"]
        return found

    def get_num_virtual_stages(self) -> int:
        """One: a worker has one stage."""
        return 1


class _Stage(nn.Module):
    """A layer as one piece for pipelines: tensors of torch outside, Paddle's inside."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        vars(self)["forward"] = self._run

    def _run(self, input: Any) -> Any:
        return plain(self.layer(wrap(input)))


def _made(desc: Any, shared: dict[str, nn.Module]) -> nn.Module:
    if isinstance(desc, SharedLayerDesc):
        first = desc.layer_name not in shared
        if first:
            shared[desc.layer_name] = desc.build_layer()
        layer = shared[desc.layer_name]
        return layer if desc.forward_func is None else _Called(desc.forward_func, layer)
    if isinstance(desc, LayerDesc):
        desc = desc.build_layer()
    return desc if isinstance(desc, nn.Module) else _Called(desc)


class PipelineModel(Layer):
    """What ``fleet.distributed_model`` makes of a ``PipelineLayer``."""

    def __init__(self, layers: PipelineLayer, fleet: Any) -> None:
        super().__init__("pipeline_model")
        strategy = session.current("distributed_model").strategy
        vars(self)["_steps"] = int(strategy.pipeline_configs["accumulate_steps"])
        vars(self)["_inner"] = fleetx.distributed_model(layers, criterion=_criterion(layers))
        vars(self)["_pipeline"] = strategy.hybrid_configs["pp_degree"] > 1
        self._layers = layers

    @override
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """That of the layers, where one worker has all of them."""
        return vars(self)["_inner"](*inputs, **kwargs)

    def train_batch(
        self,
        data: Any,
        optimizer: Any = None,
        lr_scheduler: LRScheduler | None = None,
        scaler: Any = None,
    ) -> Any:
        """Forward, backward and update for one batch of inputs and labels; the mean loss."""
        if scaler is not None:
            note("train_batch(scaler=...)", "set strategy.amp, which scales the loss by itself.")
        if isinstance(optimizer, DistributedOptimizer):
            optimizer._set_rates(optimizer.distributed)
        inputs, labels = data
        loss = vars(self)["_inner"].train_batch((plain(_tuple(inputs)), plain(_tuple(labels))))
        if lr_scheduler is not None:
            lr_scheduler.step()
        return wrap(loss.detach().reshape(1))

    def eval_batch(self, data: Any, compute_loss: bool = True) -> Any:
        """The loss, or the outputs, of one batch."""
        inputs, labels = data
        pair = (plain(_tuple(inputs)), plain(_tuple(labels)))
        found = vars(self)["_inner"].eval_batch(pair, compute_loss=compute_loss)
        return wrap(found.reshape(1) if compute_loss and isinstance(found, Tensor) else found)


def _tuple(inputs: Any) -> Any:
    return tuple(inputs) if isinstance(inputs, list) else inputs


def _criterion(layers: PipelineLayer) -> Callable[[Any, Any], Tensor] | None:
    function = layers.loss_fn
    if function is None:
        return None

    def loss(outputs: Any, labels: Any) -> Tensor:
        found: Tensor = function(wrap(outputs), wrap(labels))
        return torch.mean(plain(found))

    return loss
