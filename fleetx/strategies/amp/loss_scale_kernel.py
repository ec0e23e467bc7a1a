"""The rule of the loss scale as one GPU kernel; torch would start thirty for its three numbers."""

# ruff: noqa: PLR0917  (kernels take positions)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor


def advance(
    scale: Tensor,
    good: Tensor,
    bad: Tensor,
    overflow: Tensor,
    *,
    counts: tuple[int, int],
    ratios: tuple[float, float],
) -> None:
    """Overwrite scale and counters by those after one update.

    Args:
        scale: A float32 on the device.
        good: Clean updates in a row, an int32.
        bad: Overflows in a row, an int32.
        overflow: A float32, not zero when the update was skipped.
        counts: Clean updates until the scale grows, overflows until it shrinks.
        ratios: The factors by which it does.
    """
    _advance[(1,)](scale, good, bad, overflow, *counts, *ratios, num_warps=1)


@triton.jit
def _advance(scale, good, bad, overflow, grow_after, shrink_after, grow_by, shrink_by):
    failed = tl.load(overflow) != 0.0
    before = tl.load(scale)
    clean = tl.where(failed, 0, tl.load(good) + 1)
    dirty = tl.where(failed, tl.load(bad) + 1, 0)
    grow = clean == grow_after
    shrink = dirty == shrink_after
    larger = before * grow_by
    larger = tl.where(larger == float("inf"), before, larger)
    smaller = tl.maximum(before * shrink_by, 1.0)
    tl.store(scale, tl.where(grow, larger, tl.where(shrink, smaller, before)))
    tl.store(good, tl.where(grow, 0, clean))
    tl.store(bad, tl.where(shrink, 0, dirty))
