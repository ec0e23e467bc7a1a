"""Matrices brought to float8, as rows and as columns: the products of Hopper want both.

On a GPU these are kernels of our own, which compiled code calls, too. What torch makes of the same
operators takes twice as long, seen on an H200: a transposed copy is written byte by byte, at a
tenth of the memory's speed, and what comes before the matrix is computed once for its largest
number, again for its float8 numbers, and for the sum of its rows besides.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fleetx.comm.gpu_kernels import has_kernels

logger = logging.getLogger(__name__)

KINDS = torch.float8_e4m3fn, torch.float8_e5m2
Kernel = tuple[str, str, torch.dtype]
"""The kind of device, the name, and the format of the matrix."""
kernels: dict[Kernel, Any] = {}
"""Filled before the first product, because code that is being compiled can load nothing."""


def load_kernels(device: torch.device) -> None:
    """Have the kernels for a device, if there are some."""
    if device.type != "cuda" or not has_kernels() or any(key[0] == "cuda" for key in kernels):
        return
    from fleetx.strategies.fp8 import casting_kernels

    kernels.update(trusted(casting_kernels.KERNELS, device))


def trusted(candidates: Mapping[str, Any], device: torch.device) -> dict[Kernel, Any]:
    """Those of the kernels that give there what torch gives, bit by bit.

    Triton 3.6 rounds float32 numbers wrongly that are stored by rows and by columns.
    """
    found = dict[Kernel, Any]()
    for name, own in candidates.items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            if _is_right(name, own, dtype, device):
                found[device.type, name, dtype] = own
            else:
                logger.info("fp8: %s is wrong for %s here; torch computes it", name, dtype)
    return found


def largest(matrix: Tensor) -> Tensor:
    """The largest magnitude; no number if one of them is none."""
    own = _kernel("largest", matrix)
    if own is None:
        return matrix.abs().amax()
    found: Tensor = own(matrix.t() if _lies_by_columns(matrix) else _with_rows(matrix))
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
    rows, columns, sums = own(_with_rows(matrix), factor, _is_wide(kind))
    total = sums.sum(0).to(matrix.dtype) if summed else None
    return rows.view(kind), columns.view(kind), total


def rounded(tensor: Tensor, kind: torch.dtype, factor: Tensor) -> Tensor:
    """A tensor times a factor, or its rows times a factor each, in float8 by operators of torch."""
    most = torch.finfo(kind).max
    # What rounds to more than the format has would be no number before torch 2.12.
    return (tensor.float() * factor).clamp(-most, most).to(kind)


def _is_right(name: str, own: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a kernel gives the same numbers as torch, bit by bit."""
    numbers = torch.Generator().manual_seed(0)
    # Whole tiles and parts of some; from numbers below the smallest of float8 to those beyond it.
    drawn = torch.randn(2, 272, 400, generator=numbers)
    matrix = (drawn[0].exp() * drawn[1]).to(device, dtype)
    if name == "largest":
        return torch.equal(own(matrix), matrix.abs().amax().float())
    for kind in KINDS:
        for factor in (torch.full((), scale, device=device) for scale in (1e-4, 1.0, 1e4)):
            wanted = rounded(matrix, kind, factor).view(torch.uint8)
            found = own(matrix, factor, _is_wide(kind))
            parts = (found,) if isinstance(found, Tensor) else found[:2]
            for part in parts:
                if not torch.equal(part if part.shape == wanted.shape else part.t(), wanted):
                    return False
            if name == "cast_both" and not torch.allclose(
                found[2].sum(0), matrix.float().sum(0), rtol=1e-4, atol=1e-2
            ):
                return False
    return True


def _kernel(name: str, matrix: Tensor) -> Any:
    return kernels.get((matrix.device.type, name, matrix.dtype))


def _is_wide(kind: torch.dtype) -> bool:
    """Whether it is the format with more range and fewer digits."""
    return kind == torch.float8_e5m2


def _lies_by_columns(matrix: Tensor) -> bool:
    """Whether its columns lie together in memory, as those of weights of ``Conv1D`` do."""
    return matrix.stride(1) != 1 and matrix.stride(0) == 1


def _with_rows(matrix: Tensor) -> Tensor:
    """The kernels take rows that lie together."""
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()
