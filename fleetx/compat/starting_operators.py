"""Operators of start-up programs: how a script lets one variable begin with another's value."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fleetx.compat.dtypes import dtype_of
from fleetx.near_names import near_names
from fleetx.record.error import ProgramError
from fleetx.static.record.program import Program

Attrs = dict[str, Any]

_KINDS: dict[str, Callable[[list[Tensor], Attrs], Any]] = {
    "assign": lambda given, attrs: given[0],
    "cast": lambda given, attrs: given[0].to(dtype_of(attrs.get("out_dtype", "float32"))),
    "fill_constant": lambda given, attrs: torch.full((), float(attrs.get("value", 0.0))),
    "scale": lambda given, attrs: given[0] * attrs.get("scale", 1.0) + attrs.get("bias", 0.0),
}
"""What such operators give."""

_AGREED = {
    *("c_broadcast", "c_gen_nccl_id", "c_comm_init", "c_comm_init_all", "gen_nccl_id"),
    *("c_sync_calc_stream", "c_sync_comm_stream", "c_wait_compute", "c_wait_comm", "broadcast"),
}
"""Operators by which workers of Paddle meet and begin alike, which they do here by themselves."""


def appended(startup: Program, type: str, inputs: Any, outputs: Any, attrs: Any) -> None:
    """Let variables begin with what an operator gives.

    Args:
        startup: the start-up program.
        type: the operator's name in Paddle.
        inputs: variables by the operator's names.
        outputs: likewise.
        attrs: its options.
    """
    if type in _AGREED:
        return
    if type not in _KINDS:
        near = near_names(type, _KINDS, most=1)
        hint = f"; the nearest that is covered is {near[0]!r}" if near else ""
        raise NotImplementedError(
            f"append_op(type={type!r}) of a start-up program is not covered{hint}. Pass an "
            "initializer to the parameter instead."
        )
    sources = [_initial(startup, name) for name in _names(inputs)]
    for name in _names(outputs):
        begun = _initial(startup, name)
        begun.reset = _beginning(_KINDS[type], sources, dict(attrs or {}))


def _beginning(kind: Callable[..., Any], sources: list[Any], attrs: Attrs) -> Callable[..., None]:
    """Draws first values; layers are drawn in their order, so what it reads was drawn before."""

    def reset(module: Any) -> None:
        given = [source.module.get_parameter("value").detach() for source in sources]
        module.get_parameter("value").copy_(kind(given, attrs))

    return reset


def _names(nest: Any) -> list[str]:
    listed: list[str] = []
    for value in (nest or {}).values():
        for entry in value if isinstance(value, (list, tuple)) else [value]:
            listed.append(entry if isinstance(entry, str) else entry.name)
    return listed


def _initial(startup: Program, name: str) -> Any:
    found = startup.initial.get(name)
    if found is None:
        near = near_names(name, startup.initial, most=1)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise ProgramError(f"the start-up program gives {name!r} no first value{hint}.")
    return found
