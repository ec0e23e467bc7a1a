"""Matrices brought to float8, as rows and as columns: the products of Hopper want both.

On a GPU these are kernels of our own, which compiled code calls, too. What torch makes of the same
operators takes twice as long, seen on an H200: a transposed copy is written byte by byte, at a
tenth of the memory's speed, and what comes before the matrix is computed once for its largest
number, again for its float8 numbers, and for the sum of its rows besides.
"""

import logging
import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fleetx.comm.gpu_kernels import has_kernels

logger = logging.getLogger(__name__)

KINDS = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = torch.float32, torch.bfloat16, torch.float16
Kernel = tuple[str, str, torch.dtype]
"""The kind of device, the name, and the format of the matrix."""
kernels: dict[Kernel, Any] = {}
"""Filled before the first product, because code that is being compiled can load nothing."""
_looked: set[str] = set()
"""Kinds of devices whose kernels were tried."""
MULTIPLE = 16
"""Products take matrices whose sizes are multiples of it. For others Triton makes other code."""
TRIED = (17 * MULTIPLE, 25 * MULTIPLE), (17 * MULTIPLE + 3, 25 * MULTIPLE)
"""Sizes at which kernels are tried: how many rows there are may be unknown to compiled code."""


def load_kernels(device: torch.device) -> None:
    """Have the kernels for a device, if there are some."""
    if device.type != "cuda" or not has_kernels() or device.type in _looked:
        return
    _looked.add(device.type)
    try:
        from fleetx.strategies.fp8 import casting_kernels
    except Exception as error:  # a Triton that is there and of no use has errors of its own
        _warn_of_none(f"{type(error).__name__}: {error}")
        return
    logger.info(
        "fp8: comparing kernels with torch before they are used; on a machine that has none of "
        "them yet, compiling them takes up to a minute"
    )
    kernels.update(trusted(casting_kernels.KERNELS, device))


def trusted(candidates: Mapping[str, Any], device: torch.device) -> dict[Kernel, Any]:
    """Those of the kernels that give there what torch gives, bit by bit.

    Triton 3.6 rounds float32 numbers wrongly that are stored by rows and by columns at once.
    """
    found = dict[Kernel, Any]()
    for name, own in candidates.items():
        for dtype in FORMATS:
            try:
                why = "" if _is_right(name, own, dtype, device) else "it is wrong here"
            except Exception as error:  # Triton has many of its own, for each of its parts
                why = f"{type(error).__name__}: {error}".splitlines()[0]
            if why:
                logger.info("fp8: torch computes %s of %s, not a kernel (%s)", name, dtype, why)
            else:
                found[device.type, name, dtype] = own
    if not found:
        _warn_of_none("all are wrong here, or cannot be compiled")
    return found


def _warn_of_none(why: str) -> None:
    logger.warning("fp8: no kernel for rounding works here (%s), and torch's are slower", why)


def largest(matrix: Tensor) -> Tensor:
    """The largest magnitude; no number if one of them is none."""
    own = _kernel("largest", matrix)
    if own is None:
        return matrix.abs().amax()
    found: Tensor = own(_with_rows(matrix.t() if _lies_by_columns(matrix) else matrix))
    return found


def cast(matrix: Tensor, kind: torch.dtype, factor: Tensor) -> Tensor:
    """A matrix times a factor in float8."""
    if _lies_by_columns(matrix):
        return cast_columns(matrix.t(), kind, factor)
    own = _kernel("cast_rows", matrix)
    if own is None:
        return rounded(matrix, kind, factor)
    found: Tensor = own(_with_rows(matrix), factor, _is_wide(kind))
    return found.view(kind)


def cast_columns(matrix: Tensor, kind: torch.dtype, factor: Tensor) -> Tensor:
    """The same, each column as a row."""
    if _lies_by_columns(matrix):
        return cast(matrix.t(), kind, factor)
    own = _kernel("cast_columns", matrix)
    if own is None:
        return rounded(matrix, kind, factor).t().contiguous()
    found: Tensor = own(_with_rows(matrix), factor, _is_wide(kind))
    return found.view(kind)


def cast_both(
    matrix: Tensor, kind: torch.dtype, factor: Tensor, *, summed: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The matrix in float8 by rows, and by columns; if wanted, the sum of its rows as they were."""
    if _lies_by_columns(matrix):
        columns, rows, _ = cast_both(matrix.t(), kind, factor)
        return rows, columns, matrix.sum(0) if summed else None
    own = _kernel("cast_both", matrix)
    if own is None:
        rows = cast(matrix, kind, factor)
        alone = _kernel("cast_columns", matrix) is not None
        columns = cast_columns(matrix, kind, factor) if alone else rows.t().contiguous()
        return rows, columns, matrix.sum(0) if summed else None
    rows, columns, sums = own(_with_rows(matrix), factor, _is_wide(kind), summed)
    total = sums.sum(0).to(matrix.dtype) if summed else None
    return rows.view(kind), columns.view(kind), total


def rounded(tensor: Tensor, kind: torch.dtype, factor: Tensor) -> Tensor:
    """A tensor times a factor, or its rows times a factor each, in float8 by operators of torch."""
    most = torch.finfo(kind).max
    # What rounds to more than the format has would be no number before torch 2.12.
    return (tensor.float() * factor).clamp(-most, most).to(kind)


def _is_right(name: str, own: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a kernel gives the same numbers as torch, bit by bit."""
    factors = [torch.full((), s, device=device, dtype=torch.float32) for s in (1e-4, 1.0, 1e4)]
    for shape in TRIED:
        matrix = _looked_at(shape, dtype, device)
        broken = matrix.clone()
        broken[17, 140], broken[200, 7], broken[270, 390] = math.nan, math.inf, -math.inf
        if name == "largest":
            same = torch.equal(own(matrix), matrix.abs().amax().float())
            if not same or not bool(own(broken).isnan()):
                return False
            continue
        for kind in KINDS:
            for factor, given in product(factors, (matrix, broken)):
                if not _casts(name, own, given, kind, factor):
                    return False
    return True


def _looked_at(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Whole tiles and parts of some; numbers below float8's smallest and beyond its largest."""
    numbers = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, *shape, generator=numbers, device="cpu", dtype=torch.float32)
    return (drawn[0].exp() * drawn[1]).to(device, dtype)


def _casts(name: str, own: Any, matrix: Tensor, kind: torch.dtype, factor: Tensor) -> bool:
    """Whether a kernel gives what torch gives of one matrix."""
    wanted, wide = rounded(matrix, kind, factor), _is_wide(kind)
    if name == "cast_rows":
        return _same(own(matrix, factor, wide), wanted)
    if name == "cast_columns":
        return _same(own(matrix, factor, wide), wanted.t())
    for summed in (False, True):
        rows, columns, sums = own(matrix, factor, wide, summed)
        if not _same(rows, wanted) or not _same(columns, wanted.t()):
            return False
    total = matrix.float().sum(0)
    return torch.allclose(sums.sum(0), total, rtol=1e-4, atol=1e-2, equal_nan=True)


def _same(found: Tensor, wanted: Tensor) -> bool:
    """Whether bytes are these numbers; those that are none may have any sign."""
    numbers = found.view(wanted.dtype).float()
    return torch.equal(numbers.nan_to_num(nan=-1e9), wanted.float().nan_to_num(nan=-1e9))


def _kernel(name: str, matrix: Tensor) -> Any:
    columns = matrix.shape[0 if _lies_by_columns(matrix) else 1]
    if columns % MULTIPLE:
        return None
    return kernels.get((matrix.device.type, name, matrix.dtype))


def _is_wide(kind: torch.dtype) -> bool:
    """Whether it is the format with more range and fewer digits."""
    return kind == torch.float8_e5m2


def _lies_by_columns(matrix: Tensor) -> bool:
    """Whether its columns lie together in memory, as those of weights of ``Conv1D`` do."""
    return matrix.stride(1) != 1 and matrix.stride(0) == 1


def _with_rows(matrix: Tensor) -> Tensor:
    """As the kernels were tried: rows that lie together, one after the other."""
    return matrix.contiguous()
