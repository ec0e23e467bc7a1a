"""Operators of ``paddle.fluid.layers`` over records of different lengths.

Their input has all rows one behind the other; ``fleetx.compat.lods`` knows where records begin.
"""

from collections.abc import Callable
from typing import Any

import torch

from fleetx.compat import unique_names
from fleetx.compat.dtypes import dtype_of
from fleetx.compat.lods import offsets_of, set_lod
from fleetx.compat.paddle.fluid.layers.common import activated, named
from fleetx.compat.paddle.fluid.layers.linear import BIAS, WEIGHT
from fleetx.compat.parameters import create
from fleetx.compat.recorded import settle
from fleetx.static.layers.parameters import size_of


def _places(x: Any) -> Any:
    """0, 1, 2, … for each row."""
    ones = torch.ones_like(torch.reshape(x[..., :1], (x.shape[0], -1))[:, 0], dtype=torch.int64)
    return torch.cumsum(ones, 0) - 1


def _owners(x: Any, begins: Any) -> Any:
    """The record of each row."""
    return torch.searchsorted(begins, _places(x), right=True) - 1


def _lengths(x: Any, begins: Any) -> Any:
    """How many rows each record has."""
    # Counted, and not told by begins[1:], which is empty where there is one record.
    owners = _owners(x, begins)
    return torch.index_add(torch.zeros_like(begins), 0, owners, torch.ones_like(owners))


def _per_record(values: Any, x: Any) -> Any:
    """Numbers of records beside rows that have more dimensions."""
    return torch.reshape(values, (-1, *[1] * (x.dim() - 1)))


def _added(x: Any, begins: Any) -> Any:
    sizes = [begins.shape[0], *list(x.shape)[1:]]
    return torch.index_add(torch.Tensor.new_zeros(x, sizes), 0, _owners(x, begins), x)


def _largest(x: Any, begins: Any) -> Any:
    sizes = [begins.shape[0], *list(x.shape)[1:]]
    start = torch.Tensor.new_full(x, sizes, float("-inf"))
    at = _per_record(_owners(x, begins), x).expand(*list(x.shape))
    return torch.scatter_reduce(start, 0, at, x, "amax")


def sequence_pool(input: Any, pool_type: str, is_test: bool = False, pad_value: float = 0.0) -> Any:
    """One row for each record: the sum, mean, largest, first or last of its rows."""
    kind = pool_type.lower()
    begins = offsets_of(input, "sequence_pool")
    lengths = _per_record(_lengths(input, begins), input)
    counts = torch.Tensor.to(torch.clamp_min(lengths, 1), input.dtype)
    found: dict[str, Callable[[Any, Any], Any]] = {
        "sum": _added,
        "average": lambda x, b: _added(x, b) / counts,
        "sqrt": lambda x, b: _added(x, b) / torch.sqrt(counts),
        "max": _largest,
        "first": lambda x, b: x[torch.clamp_max(b, x.shape[0] - 1)],
        "last": lambda x, b: x[torch.clamp_min(b + torch.reshape(lengths, (-1,)) - 1, 0)],
    }
    if kind not in found:
        raise ValueError(f"sequence_pool(pool_type={pool_type!r}) is none of {', '.join(found)}.")
    rows = found[kind](input, begins)
    return torch.where(torch.gt(lengths, 0), rows, torch.full_like(rows, pad_value))


def sequence_first_step(input: Any) -> Any:
    """The first row of each record."""
    return sequence_pool(input, "first")


def sequence_last_step(input: Any) -> Any:
    """The last row of each record."""
    return sequence_pool(input, "last")


def sequence_softmax(input: Any, use_cudnn: bool = False, name: str | None = None) -> Any:
    """Shares within each record, of inputs [rows, 1] or [rows]."""
    begins = offsets_of(input, "sequence_softmax")
    owners = _owners(input, begins)
    powers = torch.exp(input - _largest(input, begins)[owners])
    return named(powers / _added(powers, begins)[owners], name)


def sequence_expand(x: Any, y: Any, ref_level: int = -1, name: str | None = None) -> Any:
    """Rows of ``x``, one for each record of ``y``, repeated as often as the record has rows."""
    begins = offsets_of(y, "sequence_expand")
    return named(set_lod(x[_owners(y, begins)], begins), name)


def sequence_expand_as(x: Any, y: Any, name: str | None = None) -> Any:
    """The same."""
    return sequence_expand(x, y, name=name)


def sequence_reverse(x: Any, name: str | None = None) -> Any:
    """The rows of each record backwards."""
    begins = offsets_of(x, "sequence_reverse")
    owners = _owners(x, begins)
    ends = begins + _lengths(x, begins) - 1
    return named(set_lod(x[begins[owners] + ends[owners] - _places(x)], begins), name)


def sequence_pad(x: Any, pad_value: Any, maxlen: int | None = None, name: str | None = None) -> Any:
    """Records side by side, filled up: [records, maxlen, …], and their lengths."""
    if maxlen is None:
        raise ValueError(
            "sequence_pad(maxlen=None) makes records as long as the longest of a batch, which is "
            "not known while a program is written; give maxlen."
        )
    begins = offsets_of(x, "sequence_pad")
    lengths = _lengths(x, begins)
    steps = torch.cumsum(torch.ones_like(begins)[:, None].expand(-1, int(maxlen)), 1) - 1
    at = torch.clamp(begins[:, None] + steps, max=x.shape[0] - 1)
    there = torch.lt(steps, lengths[:, None])
    mask = torch.reshape(there, (-1, int(maxlen), *[1] * (x.dim() - 1)))
    rows = x[at]
    filler = pad_value if isinstance(pad_value, torch.Tensor) else torch.full_like(rows, pad_value)
    return named(torch.where(mask, rows, filler), name), lengths


def sequence_mask(x: Any, maxlen: Any = None, dtype: Any = "int64", name: str | None = None) -> Any:
    """1 for places before each length, 0 for those behind."""
    if maxlen is None:
        if isinstance(x, torch.Tensor) and type(x).__name__ == "Variable":
            raise ValueError(
                "sequence_mask(maxlen=None) is as wide as the largest length, which is not known "
                "while a program is written; give maxlen."
            )
        maxlen = int(torch.max(x))
    steps = torch.cumsum(torch.ones_like(x)[..., None].expand(*list(x.shape), int(maxlen)), -1) - 1
    return named(torch.Tensor.to(torch.lt(steps, x[..., None]), dtype_of(dtype)), name)


def lod_reset(x: Any, y: Any = None, target_lod: Any = None) -> Any:
    """The same rows, of records as another variable has them, or that begin as a list says."""
    found = torch.clone(x)
    if y is not None:
        return set_lod(found, offsets_of(y, "lod_reset"))
    if target_lod is None:
        raise ValueError("lod_reset() needs y or target_lod; give one.")
    begins = torch.tensor([int(at) for at in target_lod[:-1]])
    kept = torch.Tensor.to(torch.zeros_like(torch.flatten(x)[:1]), torch.int64) + begins
    return set_lod(found, kept)


def sequence_conv(  # noqa: PLR0917
    input: Any,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: Any = None,
    param_attr: Any = None,
    act: Any = None,
    name: str | None = None,
) -> Any:
    """Each row with its neighbours in the record, times a matrix."""
    settle(input)
    if filter_stride != 1:
        raise ValueError("sequence_conv(filter_stride=...) is 1 in Paddle, too; leave it out.")
    begins = offsets_of(input, "sequence_conv")
    owners, places = _owners(input, begins), _places(input)
    start = -int(filter_size // 2) if padding_start is None else padding_start
    neighbours = []
    for step in range(start, start + filter_size):
        at = torch.clamp(places + step, 0, None)
        at = torch.minimum(at, torch.zeros_like(at) + (input.shape[0] - 1))
        own = torch.eq(owners[at], owners) & torch.eq(at, places + step)
        neighbours.append(input[at] * torch.Tensor.to(own, input.dtype)[:, None])
    width = filter_size * size_of(input, 1)
    layer = name or unique_names.generate("sequence_conv")
    weight = create(layer, param_attr, [width, num_filters], input.dtype, default=WEIGHT)
    bias = create(layer, bias_attr, [num_filters], input.dtype, default=BIAS, is_bias=True)
    found = torch.matmul(torch.cat(neighbours, 1), weight)
    return named(activated(found if bias is None else found + bias, act), name)
