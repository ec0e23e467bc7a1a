"""Operators of ``paddle.fluid.layers`` over records of different lengths.

Their input has all rows one behind the other; ``fleetx.compat.lods`` knows where records begin.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fleetx.compat import unique_names
from fleetx.compat.dtypes import dtype_of
from fleetx.compat.lods import offsets_of, set_lod
from fleetx.compat.paddle.fluid.layers.common import activated, named, pair
from fleetx.compat.paddle.fluid.layers.linear import BIAS, WEIGHT
from fleetx.compat.parameters import create
from fleetx.compat.recorded import fake, operator, reshaped, settle, sizes_of
from fleetx.record.variable import Variable
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
    settle(x)
    begins = offsets_of(x, "sequence_pad")
    wide = None if maxlen is None or int(maxlen) < 0 else int(maxlen)

    def padded(rows: Tensor, begins: Tensor, filler: Tensor) -> tuple[Tensor, Tensor]:
        lengths = torch.diff(begins, append=begins.new_tensor([len(rows)]))
        longest = wide if wide is not None else int(lengths.max()) if len(lengths) else 0
        steps = torch.arange(longest, device=rows.device)
        there = steps < lengths[:, None]
        at = torch.where(there, begins[:, None] + steps, 0)
        mask = there.reshape(*there.shape, *[1] * (rows.dim() - 1))
        return torch.where(mask, rows[at], filler.to(rows.dtype)), lengths

    filler = pad_value if isinstance(pad_value, Tensor) else torch.full_like(x[:1], pad_value)
    if not isinstance(x, Variable):
        return padded(x, begins, filler)
    count = begins.fake.shape[0]
    sizes = [count, wide, *list(x.fake.shape)[1:]]
    likes = fake(sizes, x.fake.dtype, like=x), fake([count], torch.int64)
    found, lengths = operator(padded, x, begins, filler, like=likes, by_numbers=wide is None)
    return named(found, name), lengths


def sequence_unpad(x: Any, length: Any, name: str | None = None) -> Any:
    """Rows of records that lie side by side, one behind the other, without what filled them up."""
    settle(x, length)
    return named(_with_records(_unpadded, x, length, rows=list(x.shape)[2:]), name)


def _unpadded(x: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    lengths = length.reshape(-1)
    there = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return x[there], lengths.cumsum(0) - lengths


def _with_records(
    func: Callable[..., Any], *args: Any, rows: list[Any], records: Any = None
) -> Any:
    """What a function gives as rows, and where their records begin, as a variable with records."""
    if not any(isinstance(value, Variable) for value in args):
        found, begins = func(*args)
        return set_lod(found, begins)
    first = next(value for value in args if isinstance(value, Variable))
    kind = first.fake.dtype
    count = first.fake.shape[0] if records is None else records
    likes = fake([None, *rows], kind, like=list(args)), fake([count], torch.int64)
    found, begins = operator(func, *args, like=likes, by_numbers=True)
    return set_lod(found, begins)


def im2sequence(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    filter_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    input_image_size: Any = None,
    out_stride: Any = 1,
    name: str | None = None,
) -> Any:
    """Each picture as a record: a row for each window, line by line, and in it all channels."""
    if input_image_size is not None:
        raise NotImplementedError(
            "im2sequence(input_image_size=...) takes fewer windows of small pictures in a large "
            "batch, which is not covered; cut or resize them before, and leave it out."
        )
    settle(input)
    sizes, steps = pair(filter_size), pair(stride)
    given = [padding] * 4 if isinstance(padding, int) else list(padding)
    top, left, bottom, right = given if len(given) == 4 else [*given, *given]

    def windows(pictures: Tensor) -> tuple[Tensor, Tensor]:
        around = F.pad(pictures, (left, right, top, bottom))
        found = F.unfold(around, sizes, stride=steps).transpose(1, 2)
        count, each, _ = found.shape
        return found.flatten(0, 1), torch.arange(count, device=found.device) * each

    return named(_with_records(windows, input, rows=[input.shape[1] * math.prod(sizes)]), name)


def sequence_concat(input: Any, name: str | None = None) -> Any:
    """Records of several variables, the first of each behind each other, then the second, …."""
    settle(*input)
    starts = [offsets_of(x, "sequence_concat") for x in input]

    def joined(*values: Tensor) -> tuple[Tensor, Tensor]:
        rows, begins = values[: len(values) // 2], values[len(values) // 2 :]
        parts = [torch.tensor_split(x, b[1:].cpu()) for x, b in zip(rows, begins, strict=True)]
        ordered = [part for record in zip(*parts, strict=True) for part in record]
        lengths = [sum(len(part) for part in record) for record in zip(*parts, strict=True)]
        ends = torch.tensor(lengths, device=rows[0].device).cumsum(0)
        return torch.cat(ordered), torch.cat([ends.new_zeros(1), ends[:-1]])

    rows, count = list(input[0].shape)[1:], starts[0].shape[0]
    return named(_with_records(joined, *input, *starts, rows=rows, records=count), name)


def sequence_slice(input: Any, offset: Any, length: Any, name: str | None = None) -> Any:
    """A part of each record: so many rows, from so many on."""
    settle(input)
    begins = offsets_of(input, "sequence_slice")

    def cut(x: Tensor, begins: Tensor, offset: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        starts, counts = begins + offset.reshape(-1), length.reshape(-1)
        pairs = zip(starts.tolist(), counts.tolist(), strict=True)
        found = torch.cat([x[at : at + count] for at, count in pairs])
        return found, counts.cumsum(0) - counts

    rows, count = list(input.shape)[1:], begins.shape[0]
    found = _with_records(cut, input, begins, offset, length, rows=rows, records=count)
    return named(found, name)


def sequence_reshape(input: Any, new_dim: int) -> Any:
    """The numbers of each record in rows of another width."""
    settle(input)
    begins, before = offsets_of(input, "sequence_reshape"), size_of(input, 1)
    found = reshaped(input, [-1, new_dim])
    return set_lod(found, torch.div(begins * before, new_dim, rounding_mode="floor"))


def sequence_enumerate(
    input: Any, win_size: int, pad_value: int = 0, name: str | None = None
) -> Any:
    """Each row with those that follow it in its record, [rows, win_size]."""
    settle(input)
    begins = offsets_of(input, "sequence_enumerate")
    owners, places = _owners(input, begins), _places(input)
    ids = torch.reshape(input, (-1,))
    found = []
    for step in range(win_size):
        at = torch.minimum(places + step, torch.zeros_like(places) + (input.shape[0] - 1))
        own = torch.eq(owners[at], owners) & torch.eq(at, places + step)
        found.append(torch.where(own, ids[at], torch.full_like(ids, pad_value)))
    return named(set_lod(torch.stack(found, 1), begins), name)


def sequence_scatter(input: Any, index: Any, updates: Any, name: str | None = None) -> Any:
    """Rows to which the numbers of a record are added, each at its place."""
    settle(input)
    owners = _owners(index, offsets_of(index, "sequence_scatter"))
    at = owners, torch.reshape(index, (-1,))
    return named(torch.index_put(input, at, torch.reshape(updates, (-1,)), accumulate=True), name)


def sequence_mask(x: Any, maxlen: Any = None, dtype: Any = "int64", name: str | None = None) -> Any:
    """1 for places before each length, 0 for those behind."""
    settle(x)
    kind = dtype_of(dtype)
    wide = None if maxlen is None or isinstance(maxlen, Tensor) else int(maxlen)
    wide = None if wide is not None and wide < 0 else wide

    def mask(lengths: Tensor, limit: Tensor) -> Tensor:
        most = wide if wide is not None else int(limit.max()) if limit.numel() else 0
        return (torch.arange(most, device=lengths.device) < lengths[..., None]).to(kind)

    limit = maxlen if isinstance(maxlen, Tensor) else x
    if not isinstance(x, Variable):
        return mask(x, limit)
    last = _said_size(maxlen) if wide is None else wide
    like = fake([*list(x.fake.shape), last], kind)
    return named(operator(mask, x, limit, like=like, by_numbers=wide is None), name)


def _said_size(maxlen: Any) -> Any:
    """A size that a script gives as a variable; None if only a run knows it."""
    if not isinstance(maxlen, Variable):
        return None
    try:
        return sizes_of([maxlen])[0]
    except TypeError:
        return None


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
