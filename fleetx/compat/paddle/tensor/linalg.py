"""``paddle.tensor.linalg``: products of matrices."""

from typing import Any

import torch

from fleetx.compat.tensors import at_least_1d, op


def _turned(x: Any, turn: bool) -> Any:
    return torch.transpose(x, -1, -2) if turn and x.dim() > 1 else x


@op
def matmul(
    x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False, name: str | None = None
) -> Any:
    """The product of matrices, or of batches of them."""
    return at_least_1d(torch.matmul(_turned(x, transpose_x), _turned(y, transpose_y)))


@op
def mm(input: Any, mat2: Any, name: str | None = None) -> Any:
    """The product of matrices."""
    return torch.matmul(input, mat2)


@op
def bmm(x: Any, y: Any, name: str | None = None) -> Any:
    """The products of two batches of matrices."""
    return torch.bmm(x, y)


@op
def mv(x: Any, vec: Any, name: str | None = None) -> Any:
    """A matrix times a vector."""
    return torch.mv(x, vec)


@op
def dot(x: Any, y: Any, name: str | None = None) -> Any:
    """The product of vectors; of rows where there are several, as [n, 1]."""
    if x.dim() == 1:
        return at_least_1d(torch.sum(x * y, -1))
    return torch.sum(x * y, -1, keepdim=True)


@op
def t(input: Any, name: str | None = None) -> Any:
    """A matrix turned."""
    return torch.t(input)


@op
def norm(
    x: Any, p: Any = "fro", axis: Any = None, keepdim: bool = False, name: str | None = None
) -> Any:
    """The norm of a vector, of a matrix or of everything."""
    if p == "fro":
        p = 2 if not isinstance(axis, (list, tuple)) or len(axis) == 1 else "fro"
    if isinstance(axis, (list, tuple)) and len(axis) == 2 and p != "fro":
        return _over_both(x, p, tuple(axis), keepdim)
    if axis is None:
        found = torch.linalg.vector_norm(torch.reshape(x, (-1,)), p)
        return torch.reshape(found, [1] * (x.dim() if keepdim else 1))
    if p == "fro":
        return at_least_1d(torch.linalg.vector_norm(x, 2, tuple(axis), keepdim))
    return at_least_1d(torch.linalg.vector_norm(x, p, axis, keepdim))


def _over_both(x: Any, p: Any, axis: Any, keepdim: bool) -> Any:
    """Paddle takes a matrix as one vector."""
    return at_least_1d(torch.linalg.vector_norm(x, p, axis, keepdim))


@op
def cross(x: Any, y: Any, axis: int = -1, name: str | None = None) -> Any:
    """The cross product."""
    return torch.linalg.cross(x, y, dim=axis)


@op
def dist(x: Any, y: Any, p: float = 2, name: str | None = None) -> Any:
    """The norm of the difference."""
    return at_least_1d(torch.dist(x, y, p))


@op
def cholesky(x: Any, upper: bool = False, name: str | None = None) -> Any:
    """The triangular root of a matrix."""
    return torch.linalg.cholesky(x, upper=upper)


@op
def bincount(x: Any, weights: Any = None, minlength: int = 0, name: str | None = None) -> Any:
    """How often each number is there."""
    return torch.bincount(x, weights, minlength)


@op
def histogram(
    input: Any, bins: int = 100, min: float = 0, max: float = 0, name: str | None = None
) -> Any:
    """How many numbers are in each of equal parts of a range."""
    return torch.histc(input.float(), bins, min, max).to(torch.int64)


@op
def einsum(equation: str, *operands: Any) -> Any:
    """Sums of products, as letters tell."""
    return at_least_1d(torch.einsum(equation, *operands))


@op
def tensordot(x: Any, y: Any, axes: Any = 2, name: str | None = None) -> Any:
    """Sums of products over axes."""
    return at_least_1d(torch.tensordot(x, y, dims=axes))
