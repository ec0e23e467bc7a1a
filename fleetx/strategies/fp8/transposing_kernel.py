"""The transposed copy of a matrix of bytes as one GPU kernel, known to torch.compile."""

# ruff: noqa: PLR0917  (kernels take positions)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor
from torch.library import triton_op, wrap_triton

TILE = 128
"""Bytes that lie together in both copies: as many as the memory moves at once."""


@triton_op("fleetx::transposed_bytes", mutates_args={})
def transposed_bytes(matrix: Tensor) -> Tensor:
    """A copy of a uint8 matrix whose columns lie one after the other."""
    rows, columns = matrix.shape
    found = torch.empty((columns, rows), dtype=matrix.dtype, device=matrix.device)
    grid = (triton.cdiv(columns, TILE), triton.cdiv(rows, TILE))
    wrap_triton(_transpose)[grid](matrix, found, rows, columns, matrix.stride(0), TILE=TILE)
    return found


@triton.jit
def _transpose(matrix, found, rows, columns, stride, TILE: tl.constexpr):
    # In 64 bits: a matrix may have more than 2^31 numbers.
    row = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(matrix + row[:, None] * stride + column[None, :], mask=there)
    place = found + column[:, None] * rows + row[None, :]
    tl.store(place, tl.trans(tile), mask=tl.trans(there))
