"""What a loss of many numbers becomes."""

from typing import Any

import torch

from fleetx.compat.tensors import at_least_1d


def reduced(loss: Any, reduction: str) -> Any:
    """The mean, the sum, or each number."""
    if reduction == "mean":
        return at_least_1d(torch.mean(loss))
    if reduction == "sum":
        return at_least_1d(torch.sum(loss))
    if reduction != "none":
        raise ValueError(f"reduction={reduction!r} is not known; 'mean', 'sum' or 'none'.")
    return loss
