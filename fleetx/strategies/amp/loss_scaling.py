"""The dynamic loss scale: remove it from gradients, look for overflow, choose the next one."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fleetx.comm.gpu_kernels import has_kernels
from fleetx.comm.local import local
from fleetx.torch_internals import foreach_mul_, unscale_and_find_inf_, values_of


class LossScale(NamedTuple):
    """The scale and its two counters, as tensors of one number on the device that trains."""

    scale: Tensor
    good: Tensor
    """Updates without overflow since the scale last grew or an overflow came."""

    bad: Tensor
    """Overflows in a row since the scale last shrank."""

    @classmethod
    def starting_at(cls, scale: float, device: torch.device | str) -> "LossScale":
        """A scale that has seen no update yet."""
        return cls(
            scale=torch.tensor(scale, dtype=torch.float32, device=device),
            good=torch.zeros((), dtype=torch.int32, device=device),
            bad=torch.zeros((), dtype=torch.int32, device=device),
        )

    def become(self, other: "LossScale") -> None:
        """Take other values in place: whatever was recorded with these tensors sees them."""
        for mine, new in zip(self, other, strict=True):
            mine.copy_(new)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """When the scale changes, and by which factor."""

    incr_every_n_steps: int
    decr_every_n_nan_or_inf: int
    incr_ratio: float
    decr_ratio: float


@torch.no_grad()
def advance_(state: LossScale, overflow: Tensor, growth: Growth) -> None:
    """Let the state be that after one update; ``overflow`` is not zero when it was skipped.

    A clean update ends a row of overflows, and an overflow ends a row of clean updates. The scale
    never falls below one and never becomes infinite. Nothing here waits for the device.
    """
    if state.scale.is_cuda and overflow.dtype is torch.float32 and has_kernels():
        from fleetx.strategies.amp import loss_scale_kernel

        loss_scale_kernel.advance(
            *state,
            overflow,
            counts=(growth.incr_every_n_steps, growth.decr_every_n_nan_or_inf),
            ratios=(growth.incr_ratio, growth.decr_ratio),
        )
        return
    state.become(_advanced(state, overflow, growth))


def _advanced(state: LossScale, overflow: Tensor, growth: Growth) -> LossScale:
    failed = overflow.reshape(()) != 0
    good = torch.where(failed, 0, state.good + 1)
    bad = torch.where(failed, state.bad + 1, 0)
    grow = good == growth.incr_every_n_steps
    shrink = bad == growth.decr_every_n_nan_or_inf
    larger = state.scale * growth.incr_ratio
    larger = torch.where(torch.isfinite(larger), larger, state.scale)
    smaller = (state.scale * growth.decr_ratio).clamp(min=1.0)
    scale = torch.where(grow, larger, torch.where(shrink, smaller, state.scale))
    return LossScale(scale, torch.where(grow, 0, good), torch.where(shrink, 0, bad))


@torch.no_grad()
def unscale_(gradients: Iterable[Tensor], scale: Tensor) -> Tensor:
    """Divide the gradients by ``scale`` in place; a tensor that is 1 if one was not finite.

    Of a gradient spread over ranks only this rank's part is looked at.
    """
    overflow, inverse = torch.zeros(1, device=scale.device), scale.reciprocal()
    for device, parts in _by_device(gradients).items():
        flag = overflow if device == scale.device else torch.zeros(1, device=device)
        unscale_and_find_inf_(parts, flag, inverse.to(device))
        if flag is not overflow:
            overflow.logical_or_(flag.to(scale.device))
    return overflow


@torch.no_grad()
def multiply_(gradients: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply the gradients, or what this rank holds of them, in place."""
    for device, parts in _by_device(gradients).items():
        foreach_mul_(parts, factor.to(device))


def _by_device(gradients: Iterable[Tensor]) -> dict[torch.device, list[Tensor]]:
    groups: defaultdict[torch.device, list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        # Asked here, not in a call for each: there are hundreds, while a GPU waits for the host.
        usual = type(gradient) is Tensor and gradient.layout is torch.strided
        part = gradient if usual and gradient.dtype.is_floating_point else _numbers(gradient)
        groups[part.device].append(part)
    return groups


def _numbers(gradient: Tensor) -> Tensor:
    """The real numbers that this rank holds of a gradient, as a view."""
    gradient = local(gradient)
    if gradient.is_sparse:
        gradient = values_of(gradient)
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient
