"""Learning rates that change: each run of a training program is a tick.

A schedule goes to ``static.Optimizer(torch.optim.SGD, lr=static.lr.cosine_decay(0.1, 100, 90))``;
fetch it like a variable. Without a program, any scheduler of torch does the same by hand.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NAME = "learning_rate_0"
"""The name under which a program's learning rate is fetched."""


@dataclass(frozen=True)
class Schedule:
    """Number of runs so far -> learning rate."""

    formula: Callable[[int], float]
    name: str = NAME

    def __call__(self, ticks: int) -> float:
        """The rate of the run that follows ``ticks`` others."""
        return self.formula(ticks)


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Schedule:
    """``values[0]`` before the first boundary, ``values[1]`` from there on, and so on."""
    if len(values) != len(boundaries) + 1:
        raise ValueError(
            f"piecewise_decay() has {len(boundaries)} boundaries and {len(values)} values; there "
            "is one value more than there are boundaries."
        )
    return Schedule(lambda ticks: values[bisect_right(boundaries, ticks)])


def exponential_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Schedule:
    """The rate times ``decay_rate`` to the power of the periods so far."""
    return Schedule(lambda t: learning_rate * decay_rate ** _periods(t, decay_steps, staircase))


def natural_exp_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Schedule:
    """The rate times e to the power of minus ``decay_rate`` periods."""
    return Schedule(
        lambda t: learning_rate * math.exp(-decay_rate * _periods(t, decay_steps, staircase))
    )


def inverse_time_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Schedule:
    """The rate divided by 1 + ``decay_rate`` periods."""
    return Schedule(
        lambda t: learning_rate / (1 + decay_rate * _periods(t, decay_steps, staircase))
    )


def polynomial_decay(
    learning_rate: float,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Schedule:
    """Down to ``end_learning_rate`` along a power; with ``cycle``, again over longer spans."""

    def rate(ticks: int) -> float:
        span: float = decay_steps
        if cycle:
            span *= max(math.ceil(ticks / decay_steps), 1)
        left: float = (1 - min(ticks, span) / span) ** power
        return (learning_rate - end_learning_rate) * left + end_learning_rate

    return Schedule(rate)


def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> Schedule:
    """Half a cosine over the epochs, one step down for each."""
    return Schedule(
        lambda t: learning_rate * 0.5 * (math.cos(t // step_each_epoch * math.pi / epochs) + 1)
    )


def noam_decay(d_model: int, warmup_steps: int, learning_rate: float = 1.0) -> Schedule:
    """Up in a line over the warm-up, then down with the root of the run; the first run is 1."""

    def rate(ticks: int) -> float:
        run = float(ticks + 1)
        slope: float = min(run**-0.5, run * float(warmup_steps) ** -1.5)
        return learning_rate * slope / math.sqrt(d_model)

    return Schedule(rate)


def linear_lr_warmup(
    learning_rate: float | Schedule, warmup_steps: int, start_lr: float, end_lr: float
) -> Schedule:
    """From ``start_lr`` to ``end_lr`` in a line, then the rate or schedule as it is."""

    def rate(ticks: int) -> float:
        if ticks < warmup_steps:
            return start_lr + (end_lr - start_lr) * ticks / warmup_steps
        return learning_rate(ticks) if callable(learning_rate) else learning_rate

    return Schedule(rate)


def _periods(ticks: int, length: int, staircase: bool) -> float:
    return ticks // length if staircase else ticks / length
