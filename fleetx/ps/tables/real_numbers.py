"""Complex tensors as servers keep them: each number is two, as torch's optimizers move it."""

import torch
from torch import Tensor


def as_real(tensor: Tensor) -> Tensor:
    """The same memory as real numbers, with one more dimension where they were complex."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
