"""``paddle.fluid.layers.tensor``: tensors that are made, copied and kept."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleetx.compat import unique_names
from fleetx.compat.dtypes import dtype_of
from fleetx.compat.fills import Number, XavierFill
from fleetx.compat.notes import note
from fleetx.compat.paddle.fluid.layers.common import named, scalar
from fleetx.compat.paddle.fluid.layers.manipulation import concat, reverse
from fleetx.compat.parameters import ParamAttr, create
from fleetx.compat.recorded import agreed, made, rebind, settle, sizes_of
from fleetx.record.variable import Variable

__all__ = [
    "argmax",
    "argmin",
    "argsort",
    "assign",
    "cast",
    "concat",
    "create_global_var",
    "create_parameter",
    "create_tensor",
    "diag",
    "eye",
    "fill_constant",
    "fill_constant_batch_size_like",
    "has_inf",
    "has_nan",
    "isfinite",
    "linspace",
    "ones",
    "ones_like",
    "range",
    "reverse",
    "sums",
    "zeros",
    "zeros_like",
]


def cast(x: Any, dtype: Any) -> Any:
    """The same numbers in another format."""
    return torch.Tensor.to(x, dtype_of(dtype))


def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Any:
    """A variable that gets its value later."""
    settle()
    return _called(made(torch.zeros, (1,), dtype=dtype_of(dtype)), name)


def _called(variable: Any, name: str | None) -> Any:
    if name is not None and isinstance(variable, Variable):
        variable.name = name
    return variable


def create_parameter(  # noqa: PLR0917
    shape: Any,
    dtype: Any,
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Any:
    """A parameter for operators of one's own."""
    settle()
    described = ParamAttr.of(attr) or ParamAttr()
    if name is not None and described.name is None:
        described = ParamAttr(**{**vars(described), "name": name})
    layer = unique_names.generate("create_parameter")
    fill = default_initializer or (Number(0.0) if is_bias else XavierFill(None, None, uniform=True))
    return create(layer, described, sizes_of(shape), dtype, default=fill, is_bias=is_bias)


def create_global_var(  # noqa: PLR0917
    shape: Any,
    value: Any,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Any:
    """A variable that keeps its value between runs, and begins with one number."""
    static = settle()
    if force_cpu:
        note("force_cpu", "variables live where the program runs")
    attr = ParamAttr(name=name or unique_names.generate("global_var"), trainable=False)
    if not static:
        return torch.full(sizes_of(shape), value, dtype=dtype_of(dtype))
    found = create("global_var", attr, sizes_of(shape), dtype, default=Number(value))
    if isinstance(found, Variable) and (stored := found.program.parameter(found.node)) is not None:
        with torch.no_grad():  # a learning rate is asked for it before the start-up program runs
            stored.fill_(value)
    return found


def assign(input: Any, output: Any = None) -> Any:
    """A copy; into another variable, if one is given."""
    settle(input, output)
    if not isinstance(input, Tensor):
        array = np.asarray(input)
        array = array.astype("float32") if array.dtype == np.float64 else array
        input = made(torch.clone, torch.as_tensor(array))
    if output is None:
        return torch.clone(input)
    return rebind(output, input)


def fill_constant(  # noqa: PLR0917
    shape: Any,
    dtype: Any,
    value: Any,
    force_cpu: bool = False,
    out: Any = None,
    name: str | None = None,
) -> Any:
    """One number everywhere."""
    settle(out)
    if isinstance(value, Tensor):
        ones = made(torch.ones, sizes_of(shape), dtype=dtype_of(dtype))
        found = torch.Tensor.to(ones * torch.reshape(value, ()), dtype_of(dtype))
    else:
        number = float(value) if isinstance(value, str) else value
        kind = dtype_of(dtype)
        number = number if kind.is_floating_point else int(number)
        found = made(torch.full, sizes_of(shape), number, dtype=kind)
    return named(found, name) if out is None else rebind(out, found)


def fill_constant_batch_size_like(  # noqa: PLR0917
    input: Any,
    shape: Any,
    dtype: Any,
    value: Any,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    force_cpu: bool = False,
) -> Any:
    """One number everywhere, with the batch of another tensor."""
    sizes = sizes_of(shape)
    sizes[output_dim_idx] = list(input.shape)[input_dim_idx]
    return torch.Tensor.new_full(input, sizes, value, dtype=dtype_of(dtype))


def ones(shape: Any, dtype: Any, force_cpu: bool = False) -> Any:
    """Ones."""
    return fill_constant(shape, dtype, 1)


def zeros(shape: Any, dtype: Any, force_cpu: bool = False, name: str | None = None) -> Any:
    """Zeros."""
    return fill_constant(shape, dtype, 0)


def ones_like(x: Any, out: Any = None) -> Any:
    """Ones in the form of another tensor."""
    return torch.ones_like(x) if out is None else rebind(out, torch.ones_like(x))


def zeros_like(x: Any, out: Any = None) -> Any:
    """Zeros in the form of another tensor."""
    return torch.zeros_like(x) if out is None else rebind(out, torch.zeros_like(x))


def range(start: Any, end: Any, step: Any, dtype: Any, name: str | None = None) -> Any:
    """Numbers from the start on, before the end, in steps."""
    settle()
    bounds = (_number(start), _number(end), _number(step))
    return named(made(torch.arange, *bounds, dtype=dtype_of(dtype)), name)


def _number(value: Any) -> Any:
    return sizes_of(value)[0] if isinstance(value, Tensor) else value


def linspace(start: Any, stop: Any, num: Any, dtype: Any = "float32", name: Any = None) -> Any:
    """Numbers between two, at equal distances."""
    settle()
    return made(torch.linspace, start, stop, int(num), dtype=dtype_of(dtype))


def eye(
    num_rows: int,
    num_columns: int | None = None,
    batch_shape: Any = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> Any:
    """Ones on the diagonal."""
    settle()
    found = made(torch.eye, num_rows, num_columns or num_rows, dtype=dtype_of(dtype))
    return torch.tile(found, (*batch_shape, 1, 1)) if batch_shape else found


def diag(diagonal: Any) -> Any:
    """A matrix with this diagonal."""
    return torch.diag(diagonal)


def sums(input: Any, out: Any = None) -> Any:
    """The sum of several tensors."""
    found = input[0]
    for entry in input[1:]:
        found = found + agreed(found, entry)
    return found if out is None else rebind(out, found)


def argmax(x: Any, axis: int = 0) -> Any:
    """Where the largest number is."""
    return torch.argmax(x, axis)


def argmin(x: Any, axis: int = 0) -> Any:
    """Where the smallest number is."""
    return torch.argmin(x, axis)


def argsort(input: Any, axis: int = -1, descending: bool = False, name: str | None = None) -> Any:
    """Numbers in order, and where they were."""
    values, places = torch.sort(input, axis, descending)
    return values, places


def has_inf(x: Any) -> Any:
    """Whether a number is infinite."""
    return scalar(torch.any(torch.isinf(x)))


def has_nan(x: Any) -> Any:
    """Whether a number is none."""
    return scalar(torch.any(torch.isnan(x)))


def isfinite(x: Any) -> Any:
    """Whether all numbers are finite."""
    return scalar(torch.all(torch.isfinite(x)))
