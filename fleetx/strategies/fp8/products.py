"""The product of a linear layer in float8, forward and backward.

Inputs and weights become e4m3, gradients e5m2, which has fewer digits and a larger range. Scales
are found anew for every product, so that the largest magnitude becomes the largest number of the
format, and stay on the device: nothing waits for them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from typing_extensions import override

from fleetx.strategies.fp8.casting import (
    MULTIPLE,
    cast,
    cast_both,
    cast_columns,
    largest,
    rounded,
)
from fleetx.torch_internals import scaled_mm, unsafe_view

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
SMALLEST = 1e-30
"""Tensors of zeros have no largest magnitude; this one leaves all scales finite."""
Scaled = tuple[Tensor, Tensor]
"""Numbers in float8, and what to multiply them by."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, by_row: bool) -> Tensor:
    """What ``torch.nn.functional.linear`` returns, autocast heeded, of products in float8.

    Args:
        x: of any shape; its last dimension is a multiple of 16.
        weight: of the layer, both dimensions multiples of 16.
        bias: of the layer.
        by_row: a scale for each row of each factor, instead of one for the whole of it.
    """
    if not x.numel():
        return F.linear(x, weight, bias)
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        x = x.to(torch.get_autocast_dtype(kind))
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    # Rows are summed over in the gradient of the weight. Those of zeros change no scale, no sum.
    if missing := -count % MULTIPLE:
        rows = F.pad(rows, (0, 0, 0, missing))
    learns = torch.is_grad_enabled() and weight.requires_grad
    if bias is not None:  # as a kernel reads it
        bias = bias.to(rows.dtype).expand(weight.shape[0]).contiguous()
    inside = bias if _adds(rows.dtype, by_row=by_row) else None
    whole: Tensor = _Product.apply(rows, weight, inside, by_row, learns)  # type: ignore[no-untyped-call]
    # No view of it: what is written to the output in place passes by the hooks of whoever shards.
    found = unsafe_view(whole[:count], (*x.shape[:-1], weight.shape[0]))
    return found if bias is None or inside is not None else found + bias


def _adds(dtype: torch.dtype, *, by_row: bool) -> bool:
    """Whether the kernel itself can add a bias, which saves a pass over its result."""
    return not by_row and dtype in {torch.bfloat16, torch.float16}


class _Product(torch.autograd.Function):
    """Rows, a weight and what is added to each row -> their product, in the format of the rows."""

    @staticmethod
    @override
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, by_row: bool, learns: bool
    ) -> Tensor:
        ctx.by_row, ctx.format = by_row, rows.dtype
        # The weight itself is kept and not a copy: whoever shards it lets go of it meanwhile.
        if by_row:
            left, right = _scaled(rows, FORWARD), _scaled(weight, FORWARD)
            ctx.save_for_backward(rows, weight)
        else:
            left, columns = _scaled_whole(rows, columns=learns)
            right, _ = _scaled_whole(weight)
            ctx.save_for_backward(columns, left[1], weight, right[1])
        return _times(left, right, rows.dtype, by_row=by_row, quickly=True, bias=bias)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        both = _by_row if ctx.by_row else _by_tensor
        return (*both(ctx, gradient), None, None)


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of rows, of the weight and of the bias; None of what needs none."""


def _by_tensor(ctx: Any, gradient: Tensor) -> Gradients:
    columns, rows_scale, weight, weight_scale = ctx.saved_tensors
    factor = _factor(largest(gradient), BACKWARD)
    scale = factor.reciprocal()
    to_rows, to_weight, to_bias = ctx.needs_input_grad[:3]
    of_rows = of_weight = of_bias = None
    if to_weight:
        numbers, across, of_bias = cast_both(gradient, BACKWARD, factor, summed=to_bias)
        of_weight = _times((across, scale), (columns, rows_scale), weight.dtype, by_row=False)
    else:
        numbers = cast(gradient, BACKWARD, factor)
        of_bias = gradient.sum(0) if to_bias else None
    if to_rows:
        again = cast_columns(weight, FORWARD, weight_scale.reciprocal())
        of_rows = _times((numbers, scale), (again, weight_scale), ctx.format, by_row=False)
    return of_rows, of_weight, of_bias


def _by_row(ctx: Any, gradient: Tensor) -> Gradients:
    rows, weight = ctx.saved_tensors
    of_rows = of_weight = None
    if ctx.needs_input_grad[0]:
        left, right = _scaled(gradient, BACKWARD), _scaled(weight.t(), FORWARD)
        of_rows = _times(left, right, ctx.format, by_row=True, quickly=True)
    if ctx.needs_input_grad[1]:
        left, right = _scaled(gradient.t(), BACKWARD), _scaled(rows.t(), FORWARD)
        of_weight = _times(left, right, weight.dtype, by_row=True, quickly=True)
    return of_rows, of_weight, None  # these kernels add no bias


def _scaled_whole(matrix: Tensor, *, columns: bool = False) -> tuple[Scaled, Tensor | None]:
    """A factor of the forward in float8 with its scale, and by columns if they are wanted."""
    factor = _factor(largest(matrix), FORWARD)
    if columns:
        rows, across, _ = cast_both(matrix, FORWARD, factor)
        return (rows, factor.reciprocal()), across
    return (cast(matrix, FORWARD, factor), factor.reciprocal()), None


def _scaled(matrix: Tensor, kind: torch.dtype) -> Scaled:
    """A matrix in float8 with a scale for each row of it."""
    factor = _factor(matrix.abs().amax(1, keepdim=True), kind)
    return rounded(matrix, kind, factor), factor.reciprocal()


def _factor(most: Tensor, kind: torch.dtype) -> Tensor:
    """What brings the largest magnitude to that of the format."""
    # Compiled code divides in another way in float32.
    return (torch.finfo(kind).max / most.double().clamp(min=SMALLEST)).float()


def _times(
    left: Scaled,
    right: Scaled,
    dtype: torch.dtype,
    *,
    by_row: bool,
    quickly: bool = False,
    bias: Tensor | None = None,
) -> Tensor:
    """The product of a matrix and another one that is given by its columns, in a format.

    Args:
        left: of rows.
        right: of columns, each of them a row here.
        dtype: of the result.
        by_row: whether they have scales for each row.
        quickly: add up with fewer digits, as the forward may.
        bias: what is added to each row, in the format of the result.
    """
    # A kernel wants the rows of the first and the columns of the second one after the other.
    first, second = left[0].contiguous(), right[0].contiguous()
    narrow = torch.bfloat16 if by_row else dtype  # kernels with scales for each row return no other
    found: Tensor = scaled_mm(
        first,
        second.t(),
        scale_a=left[1],
        scale_b=right[1].t() if by_row else right[1],
        bias=bias,
        out_dtype=narrow,
        use_fast_accum=quickly,
    )
    # Not of itself: compiled code of torch 2.11 loses all gradients of a function that returns so.
    return found if found.dtype == dtype else found.to(dtype)
