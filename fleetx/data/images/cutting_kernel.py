"""Parts of decoded images to one batch of one size, by one kernel for all of them.

torch's and torchvision's kernels take one size for all images of a call. A call for each image, or
for each copy to a common size, waits for its turn beside the kernels of training: with hundreds of
them, decoding takes longer than a step.
"""

# ruff: noqa: PLR0917  (kernels take positions)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from collections.abc import Sequence

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from fleetx.data.images.decoding import Part

_BLOCK = 512


def cut_by_kernel(
    images: Sequence[Tensor], parts: Sequence[Part], mirrored: Sequence[bool], out: Tensor
) -> None:
    """Fill ``out``, bytes of shape batch x 3 x height x width, channels last in memory.

    The images must live until the kernel has ended.
    """
    rows = [
        (image.data_ptr(), *image.stride(), *image.shape[1:], *part, is_mirrored)
        for image, part, is_mirrored in zip(images, parts, mirrored, strict=True)
    ]
    table = torch.tensor(rows, dtype=torch.int64)
    if out.is_cuda:  # so that the copy waits for nothing
        table = table.pin_memory().to(out.device, non_blocking=True)
    height, width = out.shape[2:]
    grid = (len(images), triton.cdiv(height * width, _BLOCK))
    _cut[grid](table, out, width, height, COLUMNS=len(rows[0]), BLOCK=_BLOCK)


@triton.jit
def _cut(table, out, WIDTH, HEIGHT, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """A block of the pixels of an image."""
    image = tl.program_id(0)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < WIDTH * HEIGHT
    row = table + image * COLUMNS
    start = tl.load(row).to(tl.pointer_type(tl.uint8))
    by_colour, by_row, by_pixel = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    rows, columns = tl.load(row + 4), tl.load(row + 5)
    left, top = tl.load(row + 6), tl.load(row + 7)
    right, bottom = tl.load(row + 8), tl.load(row + 9)
    smaller, is_mirrored = tl.load(row + 10).to(tl.int32), tl.load(row + 11)
    x = pixel % WIDTH
    x = tl.where(is_mirrored != 0, WIDTH - 1 - x, x)
    x0, x1, of_x1 = _between(x, WIDTH, left, right)
    y0, y1, of_y1 = _between(pixel // WIDTH, HEIGHT, top, bottom)
    place = out + (image * WIDTH * HEIGHT + pixel).to(tl.int64) * 3
    for colour in tl.static_range(3):
        plane = start + colour * by_colour
        a = _mean(plane, x0, y0, by_pixel, by_row, columns, rows, smaller, inside)
        b = _mean(plane, x1, y0, by_pixel, by_row, columns, rows, smaller, inside)
        c = _mean(plane, x0, y1, by_pixel, by_row, columns, rows, smaller, inside)
        d = _mean(plane, x1, y1, by_pixel, by_row, columns, rows, smaller, inside)
        upper, lower = a + (b - a) * of_x1, c + (d - c) * of_x1
        found = upper + (lower - upper) * of_y1
        tl.store(place + colour, (found + 0.5).to(tl.uint8), mask=inside)


@triton.jit
def _between(at, count, first, end):
    """The pixels of a part between which one of the result lies, and the share of the second."""
    length = (end - first).to(tl.float32)
    place = (at.to(tl.float32) + 0.5) * length / count - 0.5
    place = tl.minimum(tl.maximum(place, 0.0), length - 1.0)
    whole = place.to(tl.int32)
    low = first + whole
    return low, tl.minimum(low + 1, end - 1), place - whole.to(tl.float32)


@triton.jit
def _mean(plane, x, y, by_pixel, by_row, columns, rows, smaller, inside):
    """A pixel of the image made smaller by a whole number: the mean over a square."""
    total = tl.zeros(x.shape, dtype=tl.float32)
    count = tl.zeros(x.shape, dtype=tl.float32)
    for down in range(smaller):
        for right in range(smaller):
            column, row = x * smaller + right, y * smaller + down
            there = inside & (column < columns) & (row < rows)
            value = tl.load(plane + row * by_row + column * by_pixel, mask=there, other=0)
            total += value.to(tl.float32)
            count += there.to(tl.float32)
    return tl.floor(total / tl.maximum(count, 1.0) + 0.5)
