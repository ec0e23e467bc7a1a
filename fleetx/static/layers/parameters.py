"""Making layers: a name, a module without values yet, and how it will get them."""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx.record.error import ProgramError
from fleetx.record.initial import Initial
from fleetx.record.variable import Variable, as_variable
from fleetx.static.record.current import (
    default_main_program,
    default_startup_program,
    record_by_default,
)
from fleetx.static.record.program import Program

Initializer = Callable[[Tensor], Any]
"""Fills a tensor in place, as the functions of ``torch.nn.init`` do."""


@dataclass(frozen=True, kw_only=True)
class ParamAttr:
    """How one parameter of a layer starts, and whether it moves."""

    initializer: Initializer | None = None
    """Fills the tensor; None is torch's own start for that layer."""
    trainable: bool = True


Activation = str | Callable[[Any], Any] | None
"""The name of a function of torch, or a function."""

Attr = ParamAttr | Initializer | bool | None
"""False: there is none, where a layer can do without, as without a bias or the scale of a norm."""


def one_of(**given: Any) -> Any:
    """The value of an argument that has two names, as in Paddle of different years."""
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) > 1:
        names = " and ".join(found)
        raise ProgramError(f"a layer was given {names}, which are two names of one; pass one.")
    return next(iter(found.values()), None)


def layer(
    kind: str,
    make: Callable[[], nn.Module],
    *,
    name: str | None = None,
    weight: Attr = None,
    bias: Attr = None,
    needs_weight: bool = True,
) -> nn.Module:
    """A module of the program that is recorded now, initialised by its start-up program.

    A name that the start-up program knows gives the same module again, which shares its weights.
    """
    if weight is False and needs_weight:
        raise ProgramError(
            f"{kind} was told to have no weight (False), and it computes with one; pass None, or "
            "static.ParamAttr(trainable=False) for one that does not move."
        )
    record_by_default()
    main, startup = default_main_program(), default_startup_program()
    name = name or startup.layer_names.unique(kind, startup.initial)
    made = _empty(make)
    attributes = {"weight": weight, "bias": bias}
    dropped = _drop(made, attributes)
    if name in startup.initial:
        initial = startup.initial[name]
        _check_same(name, initial.module, made)
    else:
        initial = Initial(made, reset=lambda module: _start(module, attributes, dropped))
        startup.initial[name] = initial
        for attribute, given in attributes.items():
            if isinstance(given, ParamAttr) and not given.trainable:
                getattr(made, attribute).requires_grad_(False)
    _belongs(main, name, initial)
    return initial.module


class _One(nn.Module):
    """Holds one parameter, for what handles modules."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, trainable: bool) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=trainable)


def named_parameter(
    name: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    fill: Initializer,
    *,
    trainable: bool = True,
    known: MutableMapping[str, Initial] | None = None,
) -> Variable:
    """A parameter of the program that is recorded now, saved and excluded under exactly this name.

    Args:
        name: may have dots.
        shape: its sizes.
        dtype: of its numbers; a dtype that has no gradients needs ``trainable=False``.
        fill: gives it its first value when the start-up program runs.
        trainable: whether optimizers move it.
        known: parameters of other programs by name; one that has this name and shape is shared.
    """
    record_by_default()
    main, startup = default_main_program(), default_startup_program()
    known = startup.initial if known is None else known
    initial = known.get(name)
    if initial is None or not _is_one(initial, shape, dtype):
        module = _One(shape, dtype, trainable)
        initial = known[name] = Initial(module, reset=lambda one: fill(one.value))
    startup.initial.setdefault(name, initial)
    value = initial.module.get_parameter("value")
    if main.state.path(value) is None:
        main.state.put(value, name)
    initial.state = initial.state or main.state
    main.layers[name] = initial
    node = main.read(name)
    return Variable(node.meta["val"], node, main)


def _is_one(initial: Initial, shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether a parameter is the one that is asked for again."""
    if not isinstance(initial.module, _One):
        return False
    value = initial.module.value
    return tuple(value.shape) == tuple(shape) and value.dtype == dtype


def applied(
    kind: str,
    make: Callable[[], nn.Module],
    input: Tensor,
    *,
    act: Activation = None,
    **options: Any,
) -> Variable:
    """What such a layer makes of an input, behind an activation."""
    return activated(layer(kind, make, **options)(input), act)


def _belongs(main: Program, name: str, initial: Initial) -> None:
    if main.state.path(initial.module) is None:
        main.state.add(initial.module, name)
    initial.state = initial.state or main.state
    main.layers[name] = initial


def _empty(make: Callable[[], nn.Module]) -> nn.Module:
    """Without values, so that no random numbers are drawn before the start-up program runs."""
    with torch.device("meta"):
        module = make()
    return module.to_empty(device="cpu")


def _drop(module: nn.Module, attributes: dict[str, Attr]) -> list[str]:
    """Take out parameters that shall not be, of modules that have no option for it."""
    found = [
        n
        for n, given in attributes.items()
        if given is False and getattr(module, n, None) is not None
    ]
    for name in found:
        module.register_parameter(name, None)
    return found


@torch.no_grad()
def _start(module: nn.Module, attributes: dict[str, Attr], dropped: list[str]) -> None:
    for name in dropped:  # norms fill both, or none
        module.register_parameter(name, nn.Parameter(torch.empty(1)))
    module.reset_parameters()  # type: ignore[operator]
    for name in dropped:
        module.register_parameter(name, None)
    for name, given in attributes.items():
        fill = given.initializer if isinstance(given, ParamAttr) else given
        if callable(fill):
            fill(getattr(module, name))
            _clear_padding(module)


def _clear_padding(module: nn.Module) -> None:
    """The row of ``padding_idx`` is zero, whatever fills the others."""
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        module.weight[module.padding_idx].zero_()


def _check_same(name: str, known: nn.Module, made: nn.Module) -> None:
    shapes = [{n: tuple(p.shape) for n, p in m.named_parameters()} for m in (known, made)]
    if type(known) is not type(made) or shapes[0] != shapes[1]:
        raise ProgramError(
            f"a layer {name!r} exists and is another one ({type(known).__name__} {shapes[0]} "
            f"against {type(made).__name__} {shapes[1]}), so they cannot share parameters; give "
            "one of them another name."
        )


def activated(value: Tensor, activation: Activation) -> Variable:
    """The value behind an activation given by its name in torch, or as a function."""
    if activation is None:
        return as_variable(value, "a layer")
    if callable(activation):
        return as_variable(activation(value), "a layer")
    function = getattr(torch, activation, None) or getattr(F, activation, None)
    if function is None:
        raise ProgramError(f"there is no activation {activation!r} in torch; pass a function.")
    along = {"dim": -1} if activation in {"softmax", "log_softmax"} else {}
    return as_variable(function(value, **along), "a layer")


def size_of(value: Tensor, dim: int) -> int:
    """A size that must be known, because parameters have it."""
    size = value.shape[dim]
    if not isinstance(size, int):
        raise ProgramError(
            f"dimension {dim} of {value!r} is free, but a layer has a parameter of that size; "
            "give it a size in static.data()."
        )
    return size
