"""Layers of a ``PipelineLayer`` that are made later, by the worker that needs them."""

from collections.abc import Callable
from typing import Any

from typing_extensions import override


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
