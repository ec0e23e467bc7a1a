"""``paddle.tensor.linalg``: products of matrices."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Callable
from typing import Any

import torch

from fleetx.compat.tensors import at_least_1d, op, wrap


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
def cross(x: Any, y: Any, axis: int = 9, name: str | None = None) -> Any:
    """The cross product; along the first axis of size 3 where none is named."""
    sizes = [int(size) for size in x.size()]
    at = sizes.index(3) if axis in {9, None} else axis
    return torch.linalg.cross(x, y, dim=at)


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
    """Sums of products over axes: so many of both, these of both, or a list for each."""
    if not isinstance(axes, int):
        listed = axes.tolist() if isinstance(axes, torch.Tensor) else list(axes)
        pair = listed if listed and isinstance(listed[0], (list, tuple)) else [listed, listed]
        first, *rest = ([int(a) for a in part] for part in pair)
        axes = (first, rest[0] if rest else first)
    return at_least_1d(torch.tensordot(x, y, dims=axes))


def _direct(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch that takes Paddle's arguments as they are."""

    def call(x: Any, *args: Any, name: str | None = None, **kwargs: Any) -> Any:
        found = function(x, *args, **kwargs)
        return wrap(found if isinstance(found, torch.Tensor) else tuple(found))

    call.__name__, call.__doc__ = name, f"{name} of a matrix, or of a batch of them."
    return call


det = _direct("det", lambda x: at_least_1d(torch.linalg.det(x)))
inv = inverse = _direct("inv", torch.linalg.inv)
eig = _direct("eig", torch.linalg.eig)
eigvals = _direct("eigvals", torch.linalg.eigvals)
eigh = _direct("eigh", torch.linalg.eigh)
eigvalsh = _direct("eigvalsh", torch.linalg.eigvalsh)
matrix_power = _direct("matrix_power", torch.linalg.matrix_power)
corrcoef = _direct("corrcoef", lambda x, rowvar=True: torch.corrcoef(x if rowvar else torch.t(x)))
householder_product = _direct("householder_product", torch.linalg.householder_product)


@op
def slogdet(x: Any, name: str | None = None) -> Any:
    """Sign and logarithm of the determinant, one behind the other."""
    return torch.stack([*torch.linalg.slogdet(x)])


@op
def svd(x: Any, full_matrices: bool = False, name: str | None = None) -> Any:
    """The two rotations and the singular values between them."""
    return tuple(torch.linalg.svd(x, full_matrices))


@op
def qr(x: Any, mode: str = "reduced", name: str | None = None) -> Any:
    """An orthogonal and a triangular matrix."""
    found = torch.linalg.qr(x, mode)
    return found[1] if mode == "r" else tuple(found)


@op
def pinv(x: Any, rcond: Any = 1e-15, hermitian: bool = False, name: str | None = None) -> Any:
    """The inverse of a matrix that has none."""
    return torch.linalg.pinv(x, rtol=rcond, hermitian=hermitian)


@op
def solve(x: Any, y: Any, name: str | None = None) -> Any:
    """``x @ found == y``."""
    return torch.linalg.solve(x, y)


@op
def triangular_solve(
    x: Any,
    y: Any,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
    name: str | None = None,
) -> Any:
    """The same for a triangular matrix."""
    given = torch.transpose(x, -1, -2) if transpose else x
    return torch.linalg.solve_triangular(
        given, y, upper=upper != transpose, unitriangular=unitriangular
    )


@op
def cholesky_solve(x: Any, y: Any, upper: bool = False, name: str | None = None) -> Any:
    """The same by the root ``y`` of a matrix."""
    return torch.cholesky_solve(x, y, upper)


@op
def lstsq(
    x: Any, y: Any, rcond: Any = None, driver: str | None = None, name: str | None = None
) -> Any:
    """What comes nearest to ``x @ found == y``; the rest, the rank and the singular values."""
    return tuple(torch.linalg.lstsq(x, y, rcond=rcond, driver=driver))


@op
def matrix_rank(x: Any, tol: Any = None, hermitian: bool = False, name: str | None = None) -> Any:
    """How many rows are independent."""
    if tol is None:
        found = torch.linalg.matrix_rank(x, hermitian=hermitian)
    else:
        found = torch.linalg.matrix_rank(x, atol=tol, rtol=0.0, hermitian=hermitian)
    return at_least_1d(found).to(torch.int32)


@op
def multi_dot(x: Any, name: str | None = None) -> Any:
    """The product of several matrices."""
    return torch.linalg.multi_dot(list(x))


@op
def cond(x: Any, p: Any = None, name: str | None = None) -> Any:
    """How much a matrix stretches, at most against least."""
    return at_least_1d(torch.linalg.cond(x, p))


@op
def cov(
    x: Any,
    rowvar: bool = True,
    ddof: bool = True,
    fweights: Any = None,
    aweights: Any = None,
    name: str | None = None,
) -> Any:
    """How much rows vary together."""
    given = x if rowvar else torch.t(x)
    return torch.cov(given, correction=int(ddof), fweights=fweights, aweights=aweights)


@op
def cdist(
    x: Any,
    y: Any,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
    name: str | None = None,
) -> Any:
    """Distances of all pairs of rows."""
    return torch.cdist(x, y, p, compute_mode)
