"""``paddle.fluid.layers.learning_rate_scheduler``: learning rates as variables of a program.

Optimizers turn them into schedules (``fleetx.compat.rates``). In eager mode they are schedules.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from fleetx.compat import modes
from fleetx.compat.rates import step_counter
from fleetx.compat.recorded import settle
from fleetx.record.variable import Variable
from fleetx.static import lr


def _decay_step_counter(begin: int = 0) -> Variable:
    """The number of runs of training, from ``begin`` on, as a float."""
    settle()
    return step_counter(begin)


def autoincreased_step_counter(
    counter_name: str | None = None, begin: int = 1, step: int = 1
) -> Any:
    """A count of runs, as a whole number."""
    settle()
    found = torch.round((step_counter(0) * step) + begin)
    return torch.Tensor.to(found, torch.int64)


def _periods(steps: int, staircase: bool) -> Any:
    found = _decay_step_counter() / steps
    return torch.floor(found) if staircase else found


def exponential_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Any:
    """The rate times ``decay_rate`` to the power of the periods so far."""
    if modes.in_dygraph_mode():
        return lr.exponential_decay(learning_rate, decay_steps, decay_rate, staircase)
    return learning_rate * torch.pow(float(decay_rate), _periods(decay_steps, staircase))


def natural_exp_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Any:
    """The rate times e to the power of minus ``decay_rate`` periods."""
    if modes.in_dygraph_mode():
        return lr.natural_exp_decay(learning_rate, decay_steps, decay_rate, staircase)
    return learning_rate * torch.exp(-decay_rate * _periods(decay_steps, staircase))


def inverse_time_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Any:
    """The rate divided by 1 + ``decay_rate`` periods."""
    if modes.in_dygraph_mode():
        return lr.inverse_time_decay(learning_rate, decay_steps, decay_rate, staircase)
    return learning_rate / (1 + decay_rate * _periods(decay_steps, staircase))


def polynomial_decay(
    learning_rate: float,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Any:
    """Down to ``end_learning_rate`` along a power; with ``cycle``, again over longer spans."""
    if modes.in_dygraph_mode():
        return lr.polynomial_decay(learning_rate, decay_steps, end_learning_rate, power, cycle)
    step = _decay_step_counter()
    if cycle:
        span = decay_steps * torch.clamp_min(torch.ceil(step / decay_steps), 1.0)
        left = 1 - step / span
    else:
        left = 1 - torch.clamp_max(step, float(decay_steps)) / decay_steps
    return (learning_rate - end_learning_rate) * torch.pow(left, power) + end_learning_rate


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Any:
    """``values[0]`` before the first boundary, ``values[1]`` from there on, and so on."""
    if len(values) - len(boundaries) != 1:
        raise ValueError(
            f"piecewise_decay() has {len(boundaries)} boundaries and {len(values)} values; there "
            "is one value more than there are boundaries."
        )
    if modes.in_dygraph_mode():
        return lr.piecewise_decay(boundaries, values)
    step = _decay_step_counter()
    found = torch.full_like(step, float(values[-1]))
    for bound, value in zip(reversed(boundaries), reversed(values[:-1]), strict=True):
        found = torch.where(torch.lt(step, float(bound)), torch.full_like(step, value), found)
    return found


def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> Any:
    """Half a cosine over the epochs, one step down for each."""
    if modes.in_dygraph_mode():
        return lr.cosine_decay(learning_rate, step_each_epoch, epochs)
    epoch = torch.floor(_decay_step_counter() / step_each_epoch)
    return learning_rate * 0.5 * (torch.cos(epoch * math.pi / epochs) + 1)


def noam_decay(d_model: int, warmup_steps: int, learning_rate: float = 1.0) -> Any:
    """Up in a line over the warm-up, then down with the root of the run; the first run is 1."""
    if modes.in_dygraph_mode():
        return lr.noam_decay(d_model, warmup_steps, learning_rate)
    step = _decay_step_counter(1)
    slope = torch.minimum(torch.pow(step, -0.5), step * float(warmup_steps) ** -1.5)
    return learning_rate * d_model**-0.5 * slope


def linear_lr_warmup(learning_rate: Any, warmup_steps: int, start_lr: float, end_lr: float) -> Any:
    """From ``start_lr`` to ``end_lr`` in a line, then the rate as it is."""
    if modes.in_dygraph_mode():
        return lr.linear_lr_warmup(learning_rate, warmup_steps, start_lr, end_lr)
    step = _decay_step_counter()
    rising = start_lr + (end_lr - start_lr) * step / warmup_steps
    later = learning_rate
    if not isinstance(later, Variable):
        later = torch.full_like(step, float(learning_rate))
    return torch.where(torch.lt(step, float(warmup_steps)), rising, later)
