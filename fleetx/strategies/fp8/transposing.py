"""Float8 matrices with their rows as columns, as the kernels of Hopper want both factors.

Torch writes such a copy byte by byte: seen on an H200, at a tenth of the memory's speed, also in
code that torch.compile made. So it is a kernel here, which compiled code calls, too.
"""

from typing import Any

import torch
from torch import Tensor

from fleetx.comm.gpu_kernels import has_kernels

operators: dict[str, Any] = {}
"""Kind of device -> what copies a matrix of bytes there. Filled before the first product, because
code that is being compiled can load nothing."""


def load_kernel(device: torch.device) -> None:
    """Have the kernel for a device, if there is one."""
    if device.type == "cuda" and has_kernels():
        from fleetx.strategies.fp8.transposing_kernel import transposed_bytes

        operators["cuda"] = transposed_bytes


def transposed(matrix: Tensor) -> Tensor:
    """A copy of a matrix of one byte for each number, whose columns lie one after the other."""
    copy = operators.get(matrix.device.type)
    # The kernel takes rows that lie one after the other. Where columns do, nothing is to be copied.
    if copy is None or matrix.stride(1) != 1:
        return matrix.t().contiguous()
    found: Tensor = copy(matrix.view(torch.uint8))
    return found.view(matrix.dtype)
