"""``append_op``: operators by Paddle's names, written into variables that exist."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fleetx.compat import modes, starting_operators
from fleetx.compat.dtypes import dtype_of
from fleetx.compat.paddle.fluid.layers import (
    collective,
    common,
    elementwise,
    manipulation,
    reduction,
)
from fleetx.compat.recorded import made, rebind
from fleetx.near_names import near_names
from fleetx.static.record.current import program_guard
from fleetx.static.record.program import Program

Inputs = dict[str, list[Any]]
Attrs = dict[str, Any]


def _reduced(kind: str) -> Callable[[Inputs, Attrs], Any]:
    return lambda given, attrs: collective._c_allreduce(given["X"][0], reduce_type=kind)


def _on_two(name: str) -> Callable[[Inputs, Attrs], Any]:
    call = getattr(elementwise, name)
    return lambda g, attrs: call(g["X"][0], g["Y"][0], axis=attrs.get("axis", -1))


def _on_one(func: Callable[[Any], Any]) -> Callable[[Inputs, Attrs], Any]:
    return lambda given, attrs: func(given["X"][0])


def _over(name: str) -> Callable[[Inputs, Attrs], Any]:
    def call(given: Inputs, attrs: Attrs) -> Any:
        dim = None if attrs.get("reduce_all") else attrs.get("dim", [0])
        found: Any = getattr(reduction, name)(given["X"][0], dim, attrs.get("keep_dim", False))
        return found

    return call


def _filled(given: Inputs, attrs: Attrs) -> Any:
    kind = dtype_of(attrs.get("dtype", "float32"))
    return made(torch.full, tuple(attrs["shape"]), attrs.get("value", 0.0), dtype=kind)


def _scaled(given: Inputs, attrs: Attrs) -> Any:
    after = attrs.get("bias_after_scale", True)
    return reduction.scale(given["X"][0], attrs.get("scale", 1.0), attrs.get("bias", 0.0), after)


def _multiplied(given: Inputs, attrs: Attrs) -> Any:
    left = bool(attrs.get("transpose_X", attrs.get("trans_x", False)))
    right = bool(attrs.get("transpose_Y", attrs.get("trans_y", False)))
    return reduction.matmul(given["X"][0], given["Y"][0], left, right, attrs.get("alpha", 1.0))


def _sent(given: Inputs, attrs: Attrs) -> Any:
    return collective._run(given["X"][0], collective.sent, int(attrs.get("root", 0)))


def _gathered(given: Inputs, attrs: Attrs) -> Any:
    return collective._c_allgather(given["X"][0], attrs.get("nranks", 1))


def _cast(given: Inputs, attrs: Attrs) -> Any:
    return torch.Tensor.to(given["X"][0], dtype_of(attrs.get("out_dtype", "float32")))


KINDS: dict[str, Callable[[Inputs, Attrs], Any]] = {
    "assign": _on_one(torch.clone),
    "barrier": _on_one(lambda x: x),
    "c_allgather": _gathered,
    "c_broadcast": _sent,
    "c_identity": _on_one(lambda x: x),
    "c_sync_calc_stream": _on_one(lambda x: x),
    "c_sync_comm_stream": _on_one(lambda x: x),
    "cast": _cast,
    "concat": lambda given, attrs: torch.cat(given["X"], attrs.get("axis", 0)),
    "fill_constant": _filled,
    "increment": lambda given, attrs: given["X"][0] + attrs.get("step", 1.0),
    "matmul": _multiplied,
    "matmul_v2": _multiplied,
    "mean": _on_one(reduction.mean),
    "mul": lambda given, attrs: reduction.mul(
        given["X"][0],
        given["Y"][0],
        attrs.get("x_num_col_dims", 1),
        attrs.get("y_num_col_dims", 1),
    ),
    "reshape2": lambda given, attrs: manipulation.reshape(given["X"][0], attrs["shape"]),
    "scale": _scaled,
    "sum": lambda given, attrs: reduction.sum(given["X"]),
    "transpose2": lambda given, attrs: manipulation.transpose(given["X"][0], attrs["axis"]),
    **{f"c_allreduce_{kind}": _reduced(kind) for kind in ("sum", "max", "min", "prod")},
    **{name: _on_two(name) for name in dir(elementwise) if name.startswith("elementwise_")},
    **{name: _over(name) for name in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")},
    **{name: _on_one(function) for name, function in common.ACTIVATIONS.items()},
}
"""What ``append_op(type=...)`` knows."""


def appended(type: str, inputs: Any, outputs: Any, attrs: Any) -> None:
    """Write an operator into the program that is written now; its outputs get the value."""
    if type not in KINDS:
        near = near_names(type, KINDS, most=1)
        hint = f"; the nearest that is covered is {near[0]!r}" if near else ""
        raise NotImplementedError(
            f"append_op(type={type!r}) names an operator of Paddle's executor that is not covered"
            f"{hint}. Call the function of fluid.layers or paddle that computes the same."
        )
    given = {name: _listed(value) for name, value in (inputs or {}).items()}
    found = KINDS[type](given, dict(attrs or {}))
    for name, value in (outputs or {}).items():
        if name == "XShape":  # Paddle notes the old shape there, for its gradients
            continue
        held = _listed(value)
        for variable in held:
            _assign(variable, found)


def _assign(variable: Any, found: Any) -> None:
    if isinstance(variable, Tensor) and variable is not found:
        rebind(variable, found)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def append_op(
    block: Any,
    type: str = "",
    inputs: Any = None,
    outputs: Any = None,
    attrs: Any = None,
    **options: Any,
) -> None:
    """Write an operator into the program of a block; names stand for its variables."""
    if strange := [name for name in options if name not in {"stop_gradient", "index"}]:
        raise TypeError(f"append_op() has no {strange[0]!r}; pass it in attrs.")
    program = block.program
    if program.initial:
        starting_operators.appended(program, type, inputs, outputs, attrs)
        return

    def known(nest: Any) -> Any:
        return {
            name: [program.var(v) if isinstance(v, str) else v for v in _listed(value)]
            for name, value in (nest or {}).items()
        }

    with program_guard(program):
        appended(type, known(inputs), known(outputs), attrs)


def empty_variable(program: Program, name: str | None, shape: Any, dtype: Any) -> Any:
    """A variable that an operator fills later."""
    modes.enable_static()
    sizes = [1 if size is None or int(size) < 0 else int(size) for size in shape]
    with program_guard(program):
        found = made(torch.zeros, tuple(sizes), dtype=dtype_of(dtype))
        if name:
            found.name = name
    return found
