"""Functions of ``paddle.tensor.manipulation`` and ``creation`` that few scripts use."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.paddle.device import current_device
from fleetx.compat.paddle.tensor.manipulation import _axis
from fleetx.compat.recorded import sizes_of
from fleetx.compat.tensors import op


@op
def as_strided(x: Any, shape: Any, stride: Any, offset: int = 0, name: str | None = None) -> Any:
    """A view by steps through the numbers."""
    return torch.as_strided(x, list(shape), list(stride), offset)


def _at_least(count: int) -> Any:
    function: Any = (torch.atleast_1d, torch.atleast_2d, torch.atleast_3d)[count - 1]

    @op
    def call(*inputs: Any, name: str | None = None) -> Any:
        made = [function(torch.as_tensor(x)) for x in inputs]
        return made[0] if len(made) == 1 else made

    call.__name__, call.__doc__ = f"atleast_{count}d", f"At least {count} axes."
    return call


atleast_1d, atleast_2d, atleast_3d = (_at_least(count) for count in (1, 2, 3))


@op
def broadcast_tensors(input: Any, name: str | None = None) -> Any:
    """Tensors of one shape."""
    return list(torch.broadcast_tensors(*input))


@op
def bucketize(
    x: Any,
    sorted_sequence: Any,
    out_int32: bool = False,
    right: bool = False,
    name: str | None = None,
) -> Any:
    """Between which bounds numbers are."""
    return torch.bucketize(x, sorted_sequence, out_int32=out_int32, right=right)


@op
def diag_embed(
    input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1, name: str | None = None
) -> Any:
    """Matrices with these diagonals."""
    return torch.diag_embed(torch.as_tensor(input), offset, dim1, dim2)


@op
def diagflat(x: Any, offset: int = 0, name: str | None = None) -> Any:
    """A matrix with these numbers in its diagonal."""
    return torch.diagflat(x, offset)


@op
def diagonal(
    x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, name: str | None = None
) -> Any:
    """The diagonal of a matrix."""
    return torch.diagonal(x, offset, axis1, axis2)


@op
def diagonal_scatter(
    x: Any, y: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, name: str | None = None
) -> Any:
    """Another diagonal in a matrix."""
    return torch.diagonal_scatter(x, y, offset, axis1, axis2)


@op
def select_scatter(x: Any, values: Any, axis: int, index: int, name: str | None = None) -> Any:
    """Other numbers at one place of an axis."""
    return torch.select_scatter(x, values, axis, index)


@op
def index_add(x: Any, index: Any, axis: int, value: Any, name: str | None = None) -> Any:
    """Numbers added at places of an axis."""
    return torch.index_add(x, axis, index, value)


@op
def index_fill(x: Any, index: Any, axis: int, value: Any, name: str | None = None) -> Any:
    """One number at places of an axis."""
    return torch.index_fill(x, axis, index.to(torch.int64), float(value))


@op
def index_put(
    x: Any, indices: Any, value: Any, accumulate: bool = False, name: str | None = None
) -> Any:
    """Other numbers at places."""
    return torch.index_put(x, tuple(indices), value, accumulate)


@op
def rot90(x: Any, k: int = 1, axes: Any = (0, 1), name: str | None = None) -> Any:
    """Turned by right angles."""
    return torch.rot90(x, k, list(axes))


@op
def unflatten(x: Any, axis: int, shape: Any, name: str | None = None) -> Any:
    """One axis as several."""
    return torch.unflatten(x, axis, [int(s) for s in sizes_of(shape)])


@op
def unfold(x: Any, axis: int, size: int, step: int, name: str | None = None) -> Any:
    """Windows along an axis."""
    return torch.Tensor.unfold(x, axis, size, step)


@op
def unique_consecutive(
    x: Any,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    dtype: Any = "int64",
    name: str | None = None,
) -> Any:
    """Neighbours that are equal, once."""
    found = torch.unique_consecutive(
        x, return_inverse=return_inverse, return_counts=return_counts, dim=axis
    )
    if isinstance(found, torch.Tensor):
        return found
    return (found[0], *(part.to(dtype_of(dtype)) for part in found[1:]))


@op
def view(x: Any, shape_or_dtype: Any, *more: int, name: str | None = None) -> Any:
    """The same numbers in another shape, or the same bits in another format."""
    if isinstance(shape_or_dtype, int):
        return torch.reshape(x, (shape_or_dtype, *more))
    if isinstance(shape_or_dtype, (list, tuple)):
        return torch.reshape(x, [int(s) for s in shape_or_dtype])
    return torch.Tensor.view(x, dtype_of(shape_or_dtype))


@op
def view_as(x: Any, other: Any, name: str | None = None) -> Any:
    """In the shape of another tensor."""
    return torch.reshape(x, tuple(other.size()))


@op
def vsplit(x: Any, num_or_sections: Any, name: str | None = None) -> Any:
    """Parts along the first axis; a list has their sizes."""
    if isinstance(num_or_sections, int):
        return list(torch.chunk(x, num_or_sections, 0))
    sizes = [int(_axis(size)) for size in num_or_sections]
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.size(0) - sum(s for s in sizes if s >= 0)
    return list(torch.split(x, sizes, 0))


def tolist(x: Any) -> Any:
    """Its numbers in lists."""
    return x.tolist()


@op
def logspace(
    start: Any, stop: Any, num: Any, base: Any = 10.0, dtype: Any = None, name: str | None = None
) -> Any:
    """Numbers in equal ratios."""
    given = torch.linspace(float(start), float(stop), int(num), dtype=torch.float64)
    made = torch.pow(torch.tensor(float(base), dtype=torch.float64), given)
    return made.to(device=current_device(), dtype=dtype_of(dtype or "float32"))


@op
def tril_indices(row: int, col: int | None = None, offset: int = 0, dtype: Any = "int64") -> Any:
    """Where the lower triangle of a matrix is."""
    columns = row if col is None else col
    found = torch.tril_indices(row, columns, offset, device=current_device())
    return found.to(dtype_of(dtype))


@op
def triu_indices(row: int, col: int | None = None, offset: int = 0, dtype: Any = "int64") -> Any:
    """Where the upper triangle of a matrix is."""
    columns = row if col is None else col
    found = torch.triu_indices(row, columns, offset, device=current_device())
    return found.to(dtype_of(dtype))
