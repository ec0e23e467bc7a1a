"""What the GPU kernels of LARS and LAMB share: sizes, learning rates and norms of a tensor."""

# ruff: noqa: SIM108  (branches of constants are not values)
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@triton.jit
def size_to_move(place, skip, MAY_SKIP: tl.constexpr):
    """The numbers of a tensor that move: none where the update is skipped."""
    size = tl.load(place)
    if MAY_SKIP:
        size = tl.where(tl.load(skip) != 0.0, 0, size)
    return size


@triton.jit
def learning_rate(lr, ON_DEVICE: tl.constexpr):
    """A number, or what a number on the device is now."""
    if ON_DEVICE:
        rate = tl.load(lr).to(tl.float32)
    else:
        rate = lr
    return rate


@triton.jit
def norm(sums, first, count, WIDTH: tl.constexpr):
    """The root of the sum of consecutive partial sums, in an order that never changes."""
    total = tl.zeros([WIDTH], dtype=tl.float32)
    for start in range(0, count, WIDTH):
        at = start + tl.arange(0, WIDTH)
        total += tl.load(sums + first + at, mask=at < count, other=0.0)
    return tl.sqrt(tl.sum(total))
