"""Float8 matrices with their rows as columns, as the kernels of Hopper want both factors.

Torch writes such a copy byte by byte: seen on an H200, at a tenth of the memory's speed, also in
code that torch.compile made. So it is a kernel here, which compiled code calls, too.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from fleetx.comm.gpu_kernels import has_kernels


def transposed(matrix: Tensor) -> Tensor:
    """A copy of a matrix of one byte for each number, whose columns lie one after the other."""
    if matrix.device.type != "cuda" or not has_kernels():
        return matrix.t().contiguous()
    found: Tensor = _operator()(matrix.view(torch.uint8))
    return found.view(matrix.dtype)


@cache
def _operator() -> Any:
    from fleetx.strategies.fp8.transposing_kernel import transposed_bytes

    return transposed_bytes
