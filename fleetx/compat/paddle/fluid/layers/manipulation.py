"""Forms of tensors in ``paddle.fluid.layers``: reshape, gather, pad and their like."""

import builtins
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.notes import note
from fleetx.compat.paddle.fluid.layers.common import activated, named
from fleetx.compat.recorded import (
    agreed,
    check_parts,
    fake,
    operator,
    reshaped,
    say,
    settle,
    sizes_of,
)
from fleetx.record.variable import Variable

_slice = builtins.slice


def reshape(  # noqa: PLR0917
    x: Any,
    shape: Any,
    actual_shape: Any = None,
    act: str | None = None,
    inplace: bool = False,
    name: str | None = None,
) -> Any:
    """Other sizes: -1 is what is left, 0 keeps the size at its place."""
    sizes = sizes_of(shape if actual_shape is None else actual_shape)
    return named(activated(_in_sizes(x, sizes), act), name)


def _in_sizes(x: Any, sizes: list[Any]) -> Any:
    """Zeros keep what is there, in the data that is fed and not only in what was declared."""
    check_parts(x, sizes)
    zeros = [at for at, size in enumerate(sizes) if isinstance(size, int) and size == 0]
    first = len(zeros)
    rest = sizes[first:]
    if zeros == list(range(first)) and 0 < first < x.dim() and rest:
        flat = torch.flatten(x, first) if x.dim() > first + 1 else x
        return flat if len(rest) == 1 else torch.unflatten(flat, first, tuple(rest))
    kept = [x.shape[at] if at in zeros else size for at, size in enumerate(sizes)]
    return reshaped(x, kept)


def squeeze(input: Any, axes: Any, name: str | None = None) -> Any:
    """Without these dimensions of one; without all of them if none is named."""
    chosen = sizes_of(axes)
    return named(torch.squeeze(input, tuple(chosen)) if chosen else torch.squeeze(input), name)


def unsqueeze(input: Any, axes: Any, name: str | None = None) -> Any:
    """With dimensions of one at these places."""
    for axis in sizes_of(axes):
        input = torch.unsqueeze(input, axis)
    return named(input, name)


def transpose(x: Any, perm: Any, name: str | None = None) -> Any:
    """Dimensions in another order."""
    return named(torch.permute(x, tuple(int(at) for at in perm)), name)


def concat(input: Any, axis: Any = 0, name: str | None = None) -> Any:
    """One behind the other."""
    if isinstance(input, Tensor):
        return input
    parts, at = list(input), sizes_of(axis)[0]
    if at not in {0, -parts[0].dim()}:  # those along which they meet
        parts = [parts[0], *(agreed(parts[0], part) for part in parts[1:])]
    return named(torch.cat(parts, at), name)


def split(input: Any, num_or_sections: Any, dim: Any = -1, name: str | None = None) -> Any:
    """In equal parts, or in parts of these sizes."""
    axis = sizes_of(dim)[0]
    if isinstance(num_or_sections, int):
        return list(torch.tensor_split(input, num_or_sections, axis))
    sizes = sizes_of(num_or_sections)
    if -1 in sizes:
        known = builtins.sum(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = input.shape[axis] - known
    return list(torch.split(input, sizes, axis))


def stack(x: Any, axis: int = 0, name: str | None = None) -> Any:
    """One beside the other along a new dimension."""
    return named(torch.stack([x] if isinstance(x, Tensor) else list(x), axis), name)


def unstack(x: Any, axis: int = 0, num: int | None = None) -> Any:
    """Parts along a dimension, without it."""
    return list(torch.unbind(x, axis))


def unbind(input: Any, axis: int = 0) -> Any:
    """Parts along a dimension, without it."""
    return list(torch.unbind(input, axis))


def expand(x: Any, expand_times: Any, name: str | None = None) -> Any:
    """Repeated so many times along each dimension."""
    return named(torch.tile(x, tuple(sizes_of(expand_times))), name)


def expand_as(x: Any, target_tensor: Any, name: str | None = None) -> Any:
    """Repeated to the sizes of another tensor."""
    given, wanted = list(x.shape), list(target_tensor.shape)
    if len(given) == len(wanted) and builtins.all(
        (isinstance(size, int) and size == 1) or size is other or _same(size, other)
        for size, other in zip(given, wanted, strict=True)
    ):
        return named(torch.expand_copy(x, wanted), name)
    times = [int(other) // int(size) for size, other in zip(given, wanted, strict=True)]
    return named(torch.tile(x, tuple(times)), name)


def _same(size: Any, other: Any) -> bool:
    if isinstance(size, torch.SymInt) and isinstance(other, torch.SymInt):
        return bool(size.node.expr == other.node.expr)
    return isinstance(size, int) and isinstance(other, int) and size == other


def flatten(x: Any, axis: int = 1, name: str | None = None) -> Any:
    """Two dimensions: those before the axis, and the others."""
    if axis == 0:
        return named(torch.reshape(x, (1, -1)), name)
    rest = torch.flatten(x, axis) if axis < x.dim() else torch.unsqueeze(x, -1)
    return named(torch.flatten(rest, 0, axis - 1), name)


def gather(input: Any, index: Any, overwrite: bool = True) -> Any:
    """Rows by their numbers."""
    return torch.index_select(input, 0, torch.reshape(index, (-1,)))


def gather_nd(input: Any, index: Any, name: str | None = None) -> Any:
    """Parts by several numbers, which stand in the last dimension of the index."""
    return named(input[tuple(torch.unbind(index, -1))], name)


def scatter(
    input: Any, index: Any, updates: Any, name: str | None = None, overwrite: bool = True
) -> Any:
    """Rows replaced by others, or by the sum of others."""
    at = torch.reshape(index, (-1,))
    if overwrite:
        return named(torch.index_copy(input, 0, at, updates), name)
    cleared = torch.index_fill(input, 0, at, 0)
    return named(torch.index_add(cleared, 0, at, updates), name)


def scatter_nd_add(ref: Any, index: Any, updates: Any, name: str | None = None) -> Any:
    """Numbers added at places."""
    places = tuple(torch.unbind(index, -1))
    return named(torch.index_put(ref, places, updates, accumulate=True), name)


def slice(input: Any, axes: Any, starts: Any, ends: Any) -> Any:
    """From the starts to the ends, along these dimensions."""
    return strided_slice(input, axes, starts, ends, [1] * len(axes))


def strided_slice(input: Any, axes: Any, starts: Any, ends: Any, strides: Any) -> Any:
    """The same in steps; a negative step goes backwards."""
    parts: list[Any] = [_slice(None)] * input.dim()
    turned: list[int] = []
    bounds = zip(axes, sizes_of(starts), sizes_of(ends), sizes_of(strides), strict=True)
    for axis, start, end, step in bounds:
        if step > 0:
            parts[axis] = _slice(start, None if _beyond(end) else end, step)
        else:
            size = input.shape[axis]
            chosen = range(size)[_slice(start, end, step)]
            turned.append(axis)
            parts[axis] = _slice(chosen[-1], chosen[0] + 1, -step)
    found = input[tuple(parts)]
    return torch.flip(found, turned) if turned else found


def _beyond(end: Any) -> bool:
    return isinstance(end, int) and end >= 2**31 - 1


def shape(input: Any) -> Any:
    """The sizes, as int32 numbers."""
    if not isinstance(input, Variable):
        return torch.tensor(list(input.shape), dtype=torch.int32)
    settle(input)

    def sizes(x: Tensor) -> Tensor:
        return torch.tensor(list(x.shape), dtype=torch.int32, device=x.device)

    like = fake([input.dim()], torch.int32)
    return say(operator(sizes, input, like=like), list(input.shape))


def rank(input: Any) -> Any:
    """How many dimensions there are."""
    return torch.full_like(torch.reshape(input, (-1,))[:1], input.dim(), dtype=torch.int32)


def size(input: Any) -> Any:
    """How many numbers there are."""
    ones = torch.ones_like(input, dtype=torch.int64)
    return torch.reshape(torch.sum(ones), (1,))


def pad(x: Any, paddings: Any, pad_value: float = 0.0, name: str | None = None) -> Any:
    """Numbers around, two counts for each dimension from the first."""
    pairs = [tuple(paddings[at : at + 2]) for at in range(0, len(paddings), 2)]
    flat = [count for both in reversed(pairs) for count in both]
    return named(F.pad(x, flat, value=pad_value), name)


def pad2d(  # noqa: PLR0917
    input: Any,
    paddings: Any = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Any:
    """Numbers around images: above, below, left, right."""
    top, bottom, left, right = sizes_of(paddings)
    kind = {"edge": "replicate"}.get(mode, mode)
    last = data_format == "NHWC"
    image = torch.permute(input, (0, 3, 1, 2)) if last else input
    value = {"value": pad_value} if kind == "constant" else {}
    found = F.pad(image, (left, right, top, bottom), kind, **value)
    return named(torch.permute(found, (0, 2, 3, 1)) if last else found, name)


def one_hot(input: Any, depth: int, allow_out_of_range: bool = False) -> Any:
    """1 at the place of each number and 0 elsewhere; a last dimension of one is replaced."""
    ids = torch.squeeze(input, -1) if input.dim() > 1 and input.shape[-1] == 1 else input
    classes = torch.cumsum(torch.ones_like(ids)[..., None].expand(*ids.shape, int(depth)), -1) - 1
    return torch.Tensor.to(torch.eq(ids[..., None], classes), torch.float32)


def reverse(x: Any, axis: Any) -> Any:
    """Backwards along dimensions."""
    return torch.flip(x, tuple(sizes_of(axis)))


def where(condition: Any) -> Any:
    """Places at which it is true, for tensors with numbers."""
    return torch.nonzero(condition)


def shard_index(
    input: Any, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1
) -> Any:
    """Numbers within one part of a table, and another value for those of other parts."""
    width = (index_num + nshards - 1) // nshards
    own = torch.div(input, width, rounding_mode="floor") == shard_id
    return torch.where(own, input % width, torch.full_like(input, ignore_value))


def unique(x: Any, dtype: Any = "int32") -> Any:
    """Different numbers, and where each number went, for tensors with numbers."""
    values, places = torch.unique(x, return_inverse=True)
    return values, torch.Tensor.to(places, dtype_of(dtype))


def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    """Channels spread over a larger image."""
    return F.pixel_shuffle(x, upscale_factor)


def resized(input: Any, out_shape: Any, scale: Any, mode: str, align: bool) -> Any:
    """An image of another size."""
    sizes = None if out_shape is None else tuple(sizes_of(out_shape))
    corners = {} if mode == "nearest" else {"align_corners": align}
    factor = None if sizes else float(scale)
    return F.interpolate(input, sizes, factor, mode=mode, **corners)


def resize_bilinear(  # noqa: PLR0917
    input: Any,
    out_shape: Any = None,
    scale: Any = None,
    name: str | None = None,
    actual_shape: Any = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Any:
    """An image of another size, smoothly."""
    if align_mode != 1:
        note("align_mode", "pixels are aligned as torch does it")
    return named(resized(input, out_shape, scale, "bilinear", align_corners), name)


def resize_nearest(  # noqa: PLR0917
    input: Any,
    out_shape: Any = None,
    scale: Any = None,
    name: str | None = None,
    actual_shape: Any = None,
    align_corners: bool = True,
    data_format: str = "NCHW",
) -> Any:
    """An image of another size, by the nearest pixels."""
    return named(resized(input, out_shape, scale, "nearest", align_corners), name)
