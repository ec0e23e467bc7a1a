"""Layers of ``paddle.fluid.layers`` with a matrix: fully connected ones and tables of rows."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from fleetx.compat import unique_names
from fleetx.compat.fills import Bell, ByFans, Even, Number, XavierFill
from fleetx.compat.notes import note
from fleetx.compat.paddle.fluid.layers.common import activated, named
from fleetx.compat.parameters import ParamAttr, create
from fleetx.compat.recorded import settle
from fleetx.compat.role_makers import servers_ahead
from fleetx.ps.tables import initializers as rows_of
from fleetx.record.variable import Variable
from fleetx.static.layers import tables
from fleetx.static.layers.parameters import size_of

WEIGHT = XavierFill(None, None, uniform=True)
BIAS = Number(0.0)


def fc(  # noqa: PLR0917
    input: Any,
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    name: str | None = None,
) -> Any:
    """A fully connected layer; several inputs are transformed one by one and added."""
    inputs = [input] if isinstance(input, Tensor) else list(input)
    settle(*inputs)
    layer = name or unique_names.generate("fc")
    attrs = param_attr if isinstance(param_attr, (list, tuple)) else [param_attr] * len(inputs)
    parts = []
    for given, attr in zip(inputs, attrs, strict=True):
        flat = _folded(given, num_flatten_dims)
        weight = create(layer, attr, [size_of(flat, -1), size], flat.dtype, default=WEIGHT)
        parts.append(torch.matmul(flat, weight))
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    bias = create(layer, bias_attr, [size], found.dtype, default=BIAS, is_bias=True)
    steps = len(parts) + (len(parts) > 1) + (bias is not None) + (act is not None)
    return named(activated(found if bias is None else found + bias, act), name, steps)


def _folded(x: Any, leading: int) -> Any:
    leading = x.dim() - 1 if leading == -1 else leading
    return torch.flatten(x, leading) if x.dim() > leading + 1 else x


def embedding(  # noqa: PLR0917
    input: Any,
    size: Any,
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Any:
    """One row of a table for each id; ids of shape [n, 1] give rows of shape [n, width]."""
    return looked_up(narrow(input), size, is_sparse, is_distributed, padding_idx, param_attr, dtype)


def narrow(ids: Any) -> Any:
    """Ids without the last dimension of one that Paddle 1 asks for."""
    return torch.squeeze(ids, -1) if ids.dim() > 1 and ids.shape[-1] == 1 else ids


def looked_up(  # noqa: PLR0917
    ids: Any,
    size: Any,
    is_sparse: bool,
    is_distributed: bool,
    padding_idx: int | None,
    param_attr: Any,
    dtype: Any = "float32",
) -> Any:
    """Rows by ids of any shape, from a table here or on parameter servers."""
    settle(ids)
    ids = torch.Tensor.to(ids, torch.int64)
    layer = unique_names.generate("embedding")
    attr = ParamAttr.of(param_attr) or ParamAttr()
    if padding_idx is not None and padding_idx < 0:
        padding_idx += int(size[0])
    if isinstance(ids, Variable) and (is_sparse or is_distributed) and servers_ahead():
        name = attr.name or unique_names.generate(f"{layer}.w")
        return served(ids, size, attr, name, padding_idx)
    if is_distributed:
        note("is_distributed", "there are no parameter servers, so the table lives in the worker")
    weight = create(layer, attr, size, dtype, default=WEIGHT)
    if is_sparse:
        vars(_parameter(weight))["sparse_rows"] = True
    found = F.embedding(ids, weight)
    if padding_idx is None:
        return found
    return found * torch.Tensor.to(torch.ne(ids, padding_idx), found.dtype)[..., None]


def _parameter(weight: Any) -> Any:
    return weight.program.parameter(weight.node) if isinstance(weight, Variable) else weight


def served(  # noqa: PLR0917
    ids: Any,
    size: Any,
    attr: ParamAttr,
    name: str,
    padding_idx: int | None = None,
    entry: Any = None,
    is_test: bool = False,
) -> Any:
    """Rows of a table on parameter servers."""
    return tables.served_embedding(
        ids,
        int(size[1]),
        padding_idx,
        is_test,
        entry,
        first_rows(attr.initializer or WEIGHT, [int(s) for s in size]),
        name.replace(".", "_").replace("@", "_"),
    )


def first_rows(fill: Any, size: list[int]) -> Any:
    """What rows on servers begin with, for an initializer of a whole table."""
    known = fill.of_shape(size) if isinstance(fill, ByFans) else fill
    if isinstance(known, Number):
        return rows_of.Constant(float(known.value))
    if isinstance(known, Even):
        return rows_of.Uniform(float(known.low), float(known.high))
    if isinstance(known, Bell):
        if known.cut:
            note("TruncatedNormal", "rows on servers begin with a normal distribution, not cut")
        return rows_of.Normal(float(known.mean), float(known.std))
    raise ValueError(
        f"a table on parameter servers begins with {fill!r}, but its rows begin one by one, by "
        "their ids; use Uniform, Normal, Xavier or Constant."
    )


def dropout(  # noqa: PLR0917
    x: Any,
    dropout_prob: float,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Any:
    """Numbers are dropped at random; the rest is scaled up now, or down in tests."""
    if dropout_implementation not in {"downgrade_in_infer", "upscale_in_train"}:
        raise ValueError(
            f"dropout(dropout_implementation={dropout_implementation!r}) is neither "
            "'downgrade_in_infer' nor 'upscale_in_train'."
        )
    found = _dropped(x, float(dropout_prob), is_test, seed)
    if dropout_implementation == "downgrade_in_infer":
        found = found * (1.0 - dropout_prob)
    return named(found, name)


class SeededDropout(nn.Module):
    """Drops the same numbers at every call, as Paddle does where a seed is given."""

    one_operator = True

    def __init__(self, rate: float, seed: int) -> None:
        super().__init__()
        self.rate, self.seed = rate, seed

    @override
    def forward(self, x: Tensor) -> Tensor:
        """The rest is scaled up in training; in tests all of it passes."""
        if not self.training:
            return x
        draws = torch.Generator(x.device).manual_seed(self.seed)
        kept = torch.empty_like(x, dtype=torch.float32).uniform_(generator=draws) >= self.rate
        return x * kept.to(x.dtype) / (1.0 - self.rate)


def _dropped(x: Any, rate: float, is_test: bool, seed: int | None) -> Any:
    if seed is None or not 0.0 < rate < 1.0:
        return F.dropout(x, rate, training=not is_test)
    return SeededDropout(rate, int(seed)).train(not is_test)(x)


def bilinear_tensor_product(  # noqa: PLR0917
    x: Any,
    y: Any,
    size: int,
    act: Any = None,
    name: str | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
) -> Any:
    """Sums of products of both inputs, with weights."""
    settle(x, y)
    layer = name or unique_names.generate("bilinear_tensor_product")
    shape = [size, size_of(x, 1), size_of(y, 1)]
    weight = create(layer, param_attr, shape, x.dtype, default=WEIGHT)
    found = torch.einsum("ni,kij,nj->nk", x, weight, y)
    bias = create(layer, bias_attr, [1, size], x.dtype, default=BIAS, is_bias=True)
    return named(activated(found if bias is None else found + bias, act), name)


def row_conv(input: Any, future_context_size: int, param_attr: Any = None, act: Any = None) -> Any:
    """Each row of [N, T, D] with the rows that follow it, weighted."""
    settle(input)
    layer, ahead = unique_names.generate("row_conv"), future_context_size + 1
    weight = create(layer, param_attr, [ahead, size_of(input, -1)], input.dtype, default=WEIGHT)
    padded = F.pad(input, (0, 0, 0, future_context_size))
    length = list(input.shape)[1]
    found = torch.narrow(padded, 1, 0, length) * weight[0]
    for step in range(1, ahead):
        found = found + torch.narrow(padded, 1, step, length) * weight[step]
    return activated(found, act)


def deviation_of(filters: Any, channels: int) -> Bell:
    """How filters of a convolution begin."""
    return Bell(0.0, math.sqrt(2.0 / (math.prod(filters) * channels)))
