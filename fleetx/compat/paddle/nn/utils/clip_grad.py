"""``paddle.nn.utils``: bounds for gradients."""

from typing import Any

import torch

from fleetx.compat.tensors import at_least_1d, op


@op
def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Any:
    """Scale all gradients so that their norm is at most this; returns what it was."""
    found = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
    return at_least_1d(found)


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Cut gradients at a value."""
    torch.nn.utils.clip_grad_value_(parameters, clip_value)
