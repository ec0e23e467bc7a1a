"""``paddle.tensor.manipulation``: shapes, parts and orders of tensors."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import numpy as np
import torch

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.recorded import fake, operator, reshaped, say, sizes_of
from fleetx.compat.sizes import Sizes
from fleetx.compat.tensors import op, wrap
from fleetx.record.variable import Variable


def _axis(axis: Any) -> Any:
    """An axis, or several, as numbers, also where a tensor has them."""
    if isinstance(axis, (list, tuple)):
        return [_axis(a) for a in axis]
    if isinstance(axis, torch.Tensor) and axis.numel() > 1:
        return axis.tolist()
    if isinstance(axis, (torch.Tensor, np.generic)):
        return axis.item()
    return axis


def _target(x: Any, shape: Any) -> list[Any]:
    """A shape in which 0 is the size of the input at that place."""
    wanted = sizes_of(shape)
    return [x.size(at) if isinstance(s, int) and s == 0 else s for at, s in enumerate(wanted)]


@op
def reshape(x: Any, shape: Any, name: str | None = None) -> Any:
    """The same numbers in another shape; 0 keeps a size, -1 follows from the others."""
    return reshaped(x, _target(x, shape))


def reshape_(x: Any, shape: Any, name: str | None = None) -> Any:
    """The same tensor in another shape."""
    return _become(x, reshape(x, shape))


@op
def transpose(x: Any, perm: Any, *second: int, name: str | None = None) -> Any:
    """Axes in another order; two numbers are torch's spelling: these axes change places."""
    if second:
        return torch.transpose(x, perm, second[0])
    return torch.permute(x, list(perm))


@op
def concat(x: Any, axis: Any = 0, name: str | None = None) -> Any:
    """Tensors behind each other."""
    return torch.cat(list(x), dim=_axis(axis))


@op
def split(x: Any, num_or_sections: Any, axis: Any = 0, name: str | None = None) -> Any:
    """Parts: so many equal ones, or of these sizes, of which one may be -1."""
    axis = _axis(axis)
    if isinstance(num_or_sections, int):
        size = x.size(axis)
        if isinstance(size, int) and size % num_or_sections:
            raise ValueError(
                f"split() of {size} into {num_or_sections} equal parts leaves a rest; give a list "
                "of sizes."
            )
        return list(torch.split(x, size // num_or_sections, axis))
    sizes = [_axis(s) for s in num_or_sections]
    if -1 in sizes:
        rest = x.size(axis) - sum(s for s in sizes if s != -1)
        sizes = [rest if s == -1 else s for s in sizes]
    return list(torch.split(x, sizes, axis))


@op
def chunk(x: Any, chunks: int, axis: Any = 0, name: str | None = None) -> Any:
    """So many parts."""
    return split(x, chunks, axis)


@op
def squeeze(x: Any, axis: Any = None, name: str | None = None) -> Any:
    """Without axes of size 1: these, or all; others are left."""
    if axis is None:
        return torch.squeeze(x)
    given = _axis(axis)
    axes = given if isinstance(given, list) else [given]
    return torch.squeeze(x, tuple(axes)) if axes else torch.squeeze(x)


@op
def unsqueeze(x: Any, axis: Any, name: str | None = None) -> Any:
    """With new axes of size 1."""
    given = _axis(axis)
    for at in given if isinstance(given, list) else [given]:
        x = torch.unsqueeze(x, at)
    return x


def squeeze_(x: Any, axis: Any = None, name: str | None = None) -> Any:
    """The same tensor without axes of size 1."""
    return _become(x, squeeze(x, axis))


def unsqueeze_(x: Any, axis: Any, name: str | None = None) -> Any:
    """The same tensor with new axes of size 1."""
    return _become(x, unsqueeze(x, axis))


def _become(x: Any, other: Any) -> Any:
    """The tensor in another shape; another one where gradients flow through it."""
    if isinstance(x, Variable) or (x.requires_grad and torch.is_grad_enabled()):
        return other
    x.data = other.data
    return x


@op
def stack(x: Any, axis: int = 0, name: str | None = None) -> Any:
    """Tensors along a new axis."""
    return torch.stack(list(x), dim=axis)


@op
def unstack(x: Any, axis: int = 0, num: int | None = None) -> Any:
    """The parts along an axis, without it."""
    return list(torch.unbind(x, axis))


@op
def unbind(input: Any, axis: int = 0) -> Any:
    """The parts along an axis, without it."""
    return list(torch.unbind(input, axis))


@op
def expand(x: Any, shape: Any, *more: int, name: str | None = None) -> Any:
    """Repeated along axes of size 1; -1 keeps a size."""
    wanted = [shape, *more] if more else sizes_of(shape)
    return torch.Tensor.expand(x, wanted)


@op
def expand_as(x: Any, y: Any, name: str | None = None) -> Any:
    """Repeated to the shape of another."""
    return torch.broadcast_to(x, y.size())


broadcast_to = expand


@op
def tile(x: Any, repeat_times: Any, *more: int, name: str | None = None) -> Any:
    """Repeated along each axis."""
    return torch.tile(x, tuple([repeat_times, *more] if more else sizes_of(repeat_times)))


@op
def gather(x: Any, index: Any, axis: Any = None, name: str | None = None) -> Any:
    """The rows of these numbers."""
    return torch.index_select(x, _axis(axis) or 0, torch.reshape(index, (-1,)))


@op
def gather_nd(x: Any, index: Any, name: str | None = None) -> Any:
    """The parts at these coordinates, which are the last axis of ``index``."""
    return torch.Tensor.__getitem__(x, tuple(torch.unbind(index, -1)))


@op
def scatter(
    x: Any, index: Any, updates: Any, overwrite: bool = True, name: str | None = None
) -> Any:
    """Rows put in at these numbers, or added up there, after what was there is cleared."""
    flat = torch.reshape(index, (-1,)).to(torch.int64)
    if overwrite:
        return torch.index_copy(x, 0, flat, updates)
    return torch.index_add(torch.index_fill(x, 0, flat, 0), 0, flat, updates)


def scatter_(x: Any, index: Any, updates: Any, overwrite: bool = True) -> Any:
    """The same, in place."""
    return torch.Tensor.copy_(x, scatter(x, index, updates, overwrite))


@op
def scatter_nd_add(x: Any, index: Any, updates: Any, name: str | None = None) -> Any:
    """Parts added at these coordinates."""
    at = tuple(torch.unbind(index, -1))
    return torch.index_put(x, at, updates, accumulate=True)


@op
def scatter_nd(index: Any, updates: Any, shape: Any, name: str | None = None) -> Any:
    """Parts added at these coordinates of zeros."""
    empty = torch.Tensor.new_zeros(updates, sizes_of(shape))
    return scatter_nd_add(empty, index, updates)


@op
def flatten(x: Any, start_axis: int = 0, stop_axis: int = -1, name: str | None = None) -> Any:
    """Axes from one to another as one."""
    return torch.flatten(x, start_axis, stop_axis)


@op
def slice(input: Any, axes: Any, starts: Any, ends: Any) -> Any:
    """Parts of axes, from start to end."""
    return strided_slice(input, axes, starts, ends, [1] * len(axes))


@op
def strided_slice(
    x: Any, axes: Any, starts: Any, ends: Any, strides: Any, name: str | None = None
) -> Any:
    """Parts of axes, from start to end in steps."""
    at: list[Any] = [builtins_slice(None)] * x.dim()
    for axis, start, end, step in zip(
        axes, _axis(starts), _axis(ends), _axis(strides), strict=True
    ):
        at[axis] = builtins_slice(start, end, step)
    if any(s.step is not None and s.step < 0 for s in at):
        return _backwards(x, at)
    return torch.Tensor.__getitem__(x, tuple(at))


builtins_slice = type(np.s_[:])


def _backwards(x: Any, at: list[Any]) -> Any:
    """Steps may be negative in Paddle."""
    for axis, part in enumerate(at):
        indices = list(range(x.size(axis)))[part]
        x = torch.index_select(x, axis, torch.tensor(indices, device=x.device))
    return x


@op
def flip(x: Any, axis: Any, name: str | None = None) -> Any:
    """Axes from their end to their start."""
    axes = _axis(axis)
    return torch.flip(x, axes if isinstance(axes, list) else [axes])


reverse = flip


@op
def roll(x: Any, shifts: Any, axis: Any = None, name: str | None = None) -> Any:
    """Numbers moved along axes, round their ends."""
    return torch.roll(x, shifts, axis)


@op
def cast(x: Any, dtype: Any) -> Any:
    """The same numbers in another format."""
    return torch.Tensor.to(x, dtype_of(dtype))


def shape(input: Any) -> Any:
    """The sizes, as a tensor; in a program each of them is also taken for a size."""
    if not isinstance(input, Variable):
        return wrap(torch.tensor(list(input.size()), dtype=torch.int32))
    like = fake([input.dim()], torch.int32)
    return say(operator(_sizes, input, like=like), list(input.size()))


def _sizes(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(x.size()), dtype=torch.int32, device=x.device)


@op
def index_select(x: Any, index: Any, axis: int = 0, name: str | None = None) -> Any:
    """The parts of these numbers along an axis."""
    return torch.index_select(x, axis, index)


@op
def index_sample(x: Any, index: Any) -> Any:
    """Numbers of each row, at the places that the same row of ``index`` has."""
    return torch.gather(x, 1, index.to(torch.int64))


@op
def unique(
    x: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    dtype: Any = "int64",
    name: str | None = None,
) -> Any:
    """The different numbers in their order, and where they were."""
    found = torch.unique(x, sorted=True, return_inverse=True, return_counts=True, dim=_axis(axis))
    values, inverse, counts = found
    given = [values]
    if return_index:
        given.append(_first(inverse, values.size(_axis(axis) or 0)))
    given += [inverse.reshape(-1)] if return_inverse else []
    given += [counts] if return_counts else []
    given[1:] = [torch.Tensor.to(part, dtype_of(dtype)) for part in given[1:]]
    return given[0] if len(given) == 1 else tuple(given)


def _first(inverse: Any, count: int) -> Any:
    """Where each number is first."""
    flat = inverse.reshape(-1)
    places = torch.arange(flat.numel(), device=flat.device)
    empty = torch.full((count,), flat.numel(), dtype=torch.int64, device=flat.device)
    return empty.scatter_reduce(0, flat, places, "amin")


@op
def masked_select(x: Any, mask: Any, name: str | None = None) -> Any:
    """The numbers where the mask is true."""
    return torch.masked_select(x, mask)


@op
def take_along_axis(arr: Any, indices: Any, axis: int) -> Any:
    """Numbers at these places of an axis."""
    return torch.take_along_dim(arr, indices.to(torch.int64), axis)


@op
def put_along_axis(
    arr: Any,
    indices: Any,
    values: Any,
    axis: int,
    reduce: str = "assign",
    include_self: bool = True,
    broadcast: bool = True,
) -> Any:
    """Numbers put at these places of an axis, added or multiplied there."""
    at = indices.to(torch.int64)
    if broadcast:
        sizes = list(arr.size())
        sizes[axis] = at.size(axis)
        at = torch.broadcast_to(at, sizes)
    value = torch.as_tensor(values, device=arr.device).to(arr.dtype)
    given = torch.broadcast_to(value, at.size())
    if reduce == "assign":
        return torch.scatter(arr, axis, at, given)
    names = {"add": "sum", "mul": "prod", "multiply": "prod"}
    named = names.get(reduce, reduce)
    return torch.scatter_reduce(arr, axis, at, given, named, include_self=include_self)


@op
def repeat_interleave(x: Any, repeats: Any, axis: Any = None, name: str | None = None) -> Any:
    """Each part so many times."""
    return torch.repeat_interleave(x, repeats, axis)


@op
def moveaxis(x: Any, source: Any, destination: Any, name: str | None = None) -> Any:
    """Axes at other places."""
    return torch.movedim(x, source, destination)


@op
def crop(x: Any, shape: Any = None, offsets: Any = None, name: str | None = None) -> Any:
    """A part of this shape, from these offsets on."""
    wanted = _target(x, shape)
    starts = sizes_of(offsets) if offsets is not None else [0] * len(wanted)
    ends = [
        x.size(at) if size == -1 else start + size
        for at, (start, size) in enumerate(zip(starts, wanted, strict=True))
    ]
    return slice(x, list(range(len(wanted))), starts, ends)


@op
def shard_index(
    input: Any, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1
) -> Any:
    """Numbers within the share of one of several; others become ``ignore_value``."""
    size = (index_num + nshards - 1) // nshards
    mine = torch.div(input, size, rounding_mode="floor") == shard_id
    return torch.where(mine, input % size, torch.full_like(input, ignore_value))


def broadcast_shape(x_shape: Any, y_shape: Any) -> Sizes:
    """The shape of tensors of two shapes together."""
    return Sizes(torch.broadcast_shapes(tuple(x_shape), tuple(y_shape)))
