"""Momentum for gradients of which a part waits before it is sent."""

import math

import torch
from torch import Tensor


def local_gradient(
    gradient: Tensor,
    parameter: Tensor,
    *,
    factor: Tensor | None,
    limit: float,
    workers: int,
    decay: float,
) -> Tensor:
    """What one worker adds: its gradient without the factor of the loss, limited, with decay.

    ``limit`` is meant for the mean over the workers; 0 is none. If their gradients are independent,
    the mean stays within it when each worker's part of the mean stays within
    ``limit / sqrt(workers)``.
    """
    if factor is not None:
        gradient = gradient / factor
    if limit:
        norm = torch.linalg.vector_norm(gradient) / workers
        gradient = gradient * (limit / math.sqrt(workers) / norm).clamp(max=1)
    return gradient.add(parameter, alpha=decay) if decay else gradient


def velocity(old: Tensor, gradient: Tensor, momentum: float, nesterov: bool) -> tuple[Tensor, ...]:
    """Plain momentum: the new velocity, and what the parameter moves by."""
    new = torch.add(gradient, old, alpha=momentum)
    return new, torch.add(gradient, new, alpha=momentum) if nesterov else new


def corrected(
    old: Tensor, waiting: Tensor, gradient: Tensor, momentum: float, nesterov: bool
) -> tuple[Tensor, Tensor]:
    """Momentum before sending: the new velocity, and the sum that waits to be sent."""
    if nesterov:
        new = (old + gradient).mul_(momentum)
        return new, (waiting + new).add_(gradient)
    new = torch.add(gradient, old, alpha=momentum)
    return new, waiting + new
