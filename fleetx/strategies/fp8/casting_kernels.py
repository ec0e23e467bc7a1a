"""GPU kernels, known to torch.compile, that bring matrices to float8 as bytes.

All take matrices whose rows lie together in memory.
"""

# ruff: noqa: PLR0917  (kernels take positions)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from typing import Any

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor
from torch.library import triton_op, wrap_triton

TILE = 128
"""Bytes that lie together in both copies: as many as the memory moves at once."""
WARPS = 4
HIGH, WIDE, TURNS = 16, 512, 4
"""What one program looks at for the largest number: so many tiles of so many rows and columns."""


@triton_op("fleetx::largest", mutates_args={})
def largest(matrix: Tensor) -> Tensor:
    """The largest magnitude of a matrix, in float32; no number if one of them is none."""
    rows, columns = matrix.shape
    found = torch.zeros((), dtype=torch.int32, device=matrix.device)
    grid = (triton.cdiv(rows, HIGH * TURNS), triton.cdiv(columns, WIDE))
    wrap_triton(_largest)[grid](
        *(matrix, found, rows, columns, matrix.stride(0)),
        HIGH=HIGH,
        WIDE=WIDE,
        TURNS=TURNS,
        num_warps=2 * WARPS,
    )
    return found.view(torch.float32)


@triton_op("fleetx::cast_rows", mutates_args={})
def cast_rows(matrix: Tensor, factor: Tensor, wide: bool) -> Tensor:
    """The bytes of the matrix times a factor, in e5m2 if ``wide``, otherwise in e4m3."""
    rows, columns = matrix.shape
    found = torch.empty((rows, columns), dtype=torch.uint8, device=matrix.device)
    wrap_triton(_cast_rows)[_tiles(matrix)](
        *(matrix, factor, found, rows, columns, matrix.stride(0)),
        E5M2=wide,
        TILE=TILE,
        num_warps=WARPS,
    )
    return found


@triton_op("fleetx::cast_columns", mutates_args={})
def cast_columns(matrix: Tensor, factor: Tensor, wide: bool) -> Tensor:
    """The same, each column as a row."""
    rows, columns = matrix.shape
    found = torch.empty((columns, rows), dtype=torch.uint8, device=matrix.device)
    wrap_triton(_cast_columns)[_tiles(matrix)](
        *(matrix, factor, found, rows, columns, matrix.stride(0)),
        E5M2=wide,
        TILE=TILE,
        num_warps=WARPS,
    )
    return found


@triton_op("fleetx::cast_both", mutates_args={})
def cast_both(
    matrix: Tensor, factor: Tensor, wide: bool, summed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Both, of one reading; if wanted, with the sums of each ``TILE`` rows of the matrix."""
    rows, columns = matrix.shape
    by_rows = torch.empty((rows, columns), dtype=torch.uint8, device=matrix.device)
    by_columns = torch.empty((columns, rows), dtype=torch.uint8, device=matrix.device)
    parts = triton.cdiv(rows, TILE) if summed else 1
    sums = torch.empty((parts, columns), dtype=torch.float32, device=matrix.device)
    wrap_triton(_cast_both)[_tiles(matrix)](
        *(matrix, factor, by_rows, by_columns, sums, rows, columns, matrix.stride(0)),
        E5M2=wide,
        SUMMED=summed,
        TILE=TILE,
        num_warps=WARPS,
    )
    return by_rows, by_columns, sums


KERNELS: dict[str, Any] = {
    "largest": largest,
    "cast_rows": cast_rows,
    "cast_columns": cast_columns,
    "cast_both": cast_both,
}


def _tiles(matrix: Tensor) -> tuple[int, int]:
    rows, columns = matrix.shape
    # Rows first: CUDA has room for 2^31 of these, and for 65,535 of the others.
    return triton.cdiv(rows, TILE), triton.cdiv(columns, TILE)


@triton.jit
def _largest(
    matrix,
    found,
    rows,
    columns,
    stride,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    TURNS: tl.constexpr,
):
    column = tl.program_id(1).to(tl.int64) * WIDE + tl.arange(0, WIDE)
    most = tl.zeros((HIGH, WIDE), tl.int32)
    for turn in range(TURNS):
        row = (tl.program_id(0).to(tl.int64) * TURNS + turn) * HIGH + tl.arange(0, HIGH)
        there = (row < rows)[:, None] & (column < columns)[None, :]
        place = matrix + row[:, None] * stride + column[None, :]
        value = tl.load(place, mask=there, other=0.0).to(tl.float32)
        # Magnitudes have the order of their bits, and what is no number comes after the infinite.
        most = tl.maximum(most, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.atomic_max(found, tl.max(tl.max(most, 1), 0))


@triton.jit
def _cast_rows(
    matrix, factor, found, rows, columns, stride, E5M2: tl.constexpr, TILE: tl.constexpr
):
    row, column, there = _tile(rows, columns, TILE)
    value = tl.load(matrix + row[:, None] * stride + column[None, :], mask=there, other=0.0)
    tile = _bytes(value.to(tl.float32) * tl.load(factor), E5M2)
    tl.store(found + row[:, None] * columns + column[None, :], tile, mask=there)


@triton.jit
def _cast_columns(
    matrix, factor, found, rows, columns, stride, E5M2: tl.constexpr, TILE: tl.constexpr
):
    row, column, there = _tile(rows, columns, TILE)
    value = tl.load(matrix + row[:, None] * stride + column[None, :], mask=there, other=0.0)
    tile = _bytes(value.to(tl.float32) * tl.load(factor), E5M2)
    tl.store(found + column[:, None] * rows + row[None, :], tl.trans(tile), mask=tl.trans(there))


@triton.jit
def _cast_both(
    matrix,
    factor,
    by_rows,
    by_columns,
    sums,
    rows,
    columns,
    stride,
    E5M2: tl.constexpr,
    SUMMED: tl.constexpr,
    TILE: tl.constexpr,
):
    row, column, there = _tile(rows, columns, TILE)
    value = tl.load(matrix + row[:, None] * stride + column[None, :], mask=there, other=0.0)
    value = value.to(tl.float32)
    if SUMMED:
        # Not added up in one place: who comes first would decide how it is rounded.
        place = sums + tl.program_id(0).to(tl.int64) * columns + column
        tl.store(place, tl.sum(value, 0), mask=column < columns)
    tile = _bytes(value * tl.load(factor), E5M2)
    tl.store(by_rows + row[:, None] * columns + column[None, :], tile, mask=there)
    place = by_columns + column[:, None] * rows + row[None, :]
    tl.store(place, tl.trans(tile), mask=tl.trans(there))


@triton.jit
def _tile(rows, columns, TILE: tl.constexpr):
    """Which rows and columns a program has, and which of them there are."""
    # In 64 bits: a matrix may have more than 2^31 numbers.
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    return row, column, (row < rows)[:, None] & (column < columns)[None, :]


@triton.jit
def _bytes(value, E5M2: tl.constexpr):
    """Numbers, rounded."""
    most = 57344.0 if E5M2 else 448.0
    # Comparisons, which leave what is no number as it is.
    value = tl.where(value > most, most, tl.where(value < -most, -most, value))
    kept = value.to(tl.float8e5) if E5M2 else value.to(tl.float8e4nv)
    return kept.to(tl.uint8, bitcast=True)
