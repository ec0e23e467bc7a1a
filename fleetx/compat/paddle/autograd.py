"""``paddle.autograd``: gradients of eager tensors."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import override

from fleetx.compat import modes
from fleetx.compat.tensors import Tensor, wrap
from fleetx.record.variable import variables
from fleetx.static.record.backward import gradients

no_grad = torch.no_grad
"""Compute without gradients: a context, and a decorator."""

enable_grad = torch.enable_grad
set_grad_enabled = torch.set_grad_enabled
is_grad_enabled = torch.is_grad_enabled


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool = False,
    no_grad_vars: Any = None,
) -> list[Any]:
    """Gradients of outputs, summed, by inputs."""
    if not only_inputs or no_grad_vars:
        raise ValueError(
            "grad(only_inputs=False) and no_grad_vars are not here: gradients of other leaves come "
            "from backward(), and a tensor is left out by detach()."
        )
    if modes.is_static() and variables(outputs):
        return list(gradients(outputs, inputs, grad_outputs))
    made = _list(outputs)
    given = _list(grad_outputs) if grad_outputs is not None else [None] * len(made)
    ones = [torch.ones_like(o) if g is None else g for o, g in zip(made, given, strict=True)]
    found = torch.autograd.grad(
        made, _list(inputs), ones, retain_graph, create_graph, allow_unused=allow_unused
    )
    return [wrap(part) for part in found]


def backward(
    tensors: Any, grad_tensors: Sequence[Any] | None = None, retain_graph: bool = False
) -> None:
    """Accumulate the gradients of several tensors."""
    made = _list(tensors)
    given = _list(grad_tensors) if grad_tensors is not None else [None] * len(made)
    ones = [torch.ones_like(o) if g is None else g for o, g in zip(made, given, strict=True)]
    torch.autograd.backward(made, ones, retain_graph=retain_graph)


class PyLayerContext:
    """What forward leaves for backward."""

    def __init__(self) -> None:
        self.container: Any = ()
        self.fixed: tuple[Any, ...] = ()
        self.materialized = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors."""
        self.container = tensors

    def saved_tensor(self) -> Any:
        """What was kept."""
        return self.container

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Outputs that have no gradient."""
        self.fixed = tensors

    def mark_not_inplace(self, *tensors: Any) -> None:
        """Nothing to do: outputs are tensors of their own."""

    def set_materialize_grads(self, value: bool) -> None:
        """Whether zeros stand for gradients that there are none of."""
        self.materialized = bool(value)


class PyLayer:
    """An operator with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """What it computes."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Any, *args: Any) -> Any:
        """Gradients by its tensors."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Compute, with gradients as ``backward`` says."""
        return wrap(_applied(cls, args, kwargs))


def _applied(layer: type[PyLayer], args: Any, kwargs: Any) -> Any:
    class Function(torch.autograd.Function):
        @staticmethod
        @override
        def forward(ctx: Any, *given: Any) -> Any:
            ctx.paddle = PyLayerContext()
            ctx.is_tensor = [isinstance(part, torch.Tensor) for part in given]
            plain = [g.as_subclass(Tensor) if isinstance(g, torch.Tensor) else g for g in given]
            made = layer.forward(ctx.paddle, *plain, **kwargs)
            several = isinstance(made, (list, tuple))
            out = [
                m.as_subclass(torch.Tensor) if isinstance(m, torch.Tensor) else m
                for m in (made if several else [made])
            ]
            fixed = {id(part) for part in ctx.paddle.fixed}
            told = zip(made if several else [made], out, strict=True)
            ctx.mark_non_differentiable(*(o for m, o in told if id(m) in fixed))
            ctx.set_materialize_grads(ctx.paddle.materialized)
            return tuple(out) if several else out[0]

        @staticmethod
        @override
        def backward(ctx: Any, *given: Any) -> Any:
            found = iter(_list(layer.backward(ctx.paddle, *[wrap(g) for g in given])))
            return tuple(next(found, None) if is_tensor else None for is_tensor in ctx.is_tensor)

    return Function.apply(*args)  # type: ignore[no-untyped-call]
