"""Parameters as Paddle makes them: named, described by a ``ParamAttr``, shared by name."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.compat import modes, unique_names
from fleetx.compat.dtypes import dtype_of
from fleetx.record.initial import Initial
from fleetx.static.layers.parameters import named_parameter

Fill = Callable[[Tensor], Any]
"""Fills a tensor in place; every initializer of Paddle's spelling is one."""


@dataclass
class ParamAttr:
    """How one parameter is called, starts and moves."""

    name: str | None = None
    initializer: Fill | None = None
    learning_rate: float = 1.0
    """Times the optimizer's."""
    regularizer: Any = None
    """Instead of the optimizer's."""
    trainable: bool = True
    do_model_average: bool = True
    need_clip: bool = True
    gradient_clip: Any = None

    @classmethod
    def of(cls, given: Any) -> "ParamAttr | None":
        """What a layer was given for a parameter; None where it has none (False)."""
        if given is None or given is True:
            return cls()
        if given is False:
            return None
        if isinstance(given, ParamAttr):
            return given
        if isinstance(given, str):
            return cls(name=given)
        if callable(given):
            return cls(initializer=given)
        if hasattr(given, "coeff"):
            return cls(regularizer=given)
        raise TypeError(
            "a parameter is described by a ParamAttr, a name, an initializer or a regularizer, "
            f"got {given!r}; write ParamAttr(name=..., initializer=...)."
        )


class Scope:
    """The values of one scope: parameters by name, shared by every program that runs in it."""

    def __init__(self) -> None:
        self.parameters: dict[str, Initial] = {}
        self.attachments: dict[type, Any] = {}
        """What code that runs programs keeps with this scope, by its type."""


_scopes: list[Scope] = [Scope()]


def current_scope() -> Scope:
    """The scope in force."""
    return _scopes[-1]


@contextmanager
def scope_of_its_own(scope: Scope | None = None) -> Iterator[Scope]:
    """Values inside are those of this scope, or of a new one."""
    _scopes.append(scope or Scope())
    try:
        yield _scopes[-1]
    finally:
        _scopes.pop()


def create(
    layer: str,
    attr: Any,
    shape: Sequence[int],
    dtype: Any = "float32",
    *,
    default: Fill,
    is_bias: bool = False,
) -> Any:
    """A parameter of a layer, in a program or of torch; None if ``attr`` is False.

    Args:
        layer: the name of the layer, ``fc_0``; a parameter without a name is called after it.
        attr: what the layer was given.
        shape: its sizes.
        dtype: of its numbers.
        default: fills it where ``attr`` names no initializer.
        is_bias: whether it is called ``b_0`` instead of ``w_0``.
    """
    described = ParamAttr.of(attr)
    if described is None:
        return None
    name = described.name or unique_names.generate(f"{layer}.{'b' if is_bias else 'w'}")
    fill = described.initializer or default
    sizes = [int(size) for size in shape]
    if modes.is_static():
        known = current_scope().parameters
        made = named_parameter(
            name, sizes, dtype_of(dtype), fill, trainable=described.trainable, known=known
        )
        known[name].home = known
        _describe(known[name].module.get_parameter("value"), name, described)
        return made
    value = nn.Parameter(
        torch.empty(sizes, dtype=dtype_of(dtype)), requires_grad=described.trainable
    )
    with torch.no_grad():
        fill(value)
    _describe(value, name, described)
    return value


def _describe(value: nn.Parameter, name: str, attr: ParamAttr) -> None:
    """Optimizers find here what the script said of one parameter."""
    vars(value).update(
        paddle_name=name,
        optimize_attr={"learning_rate": attr.learning_rate},
        regularizer=attr.regularizer,
        need_clip=attr.need_clip,
        gradient_clip=attr.gradient_clip,
    )
