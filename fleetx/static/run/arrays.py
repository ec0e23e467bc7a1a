"""Tensors as numpy arrays, those too whose format numpy does not have."""

import numpy as np
import torch
from torch import Tensor

_FOREIGN = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}


def as_array(tensor: Tensor) -> np.ndarray:
    """The numbers on the host, in memory of the tensor where that is possible."""
    if tensor.dtype in _FOREIGN:
        tensor = tensor.float()  # every number of these formats is one of float32
    return tensor.numpy(force=True)
