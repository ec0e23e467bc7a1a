"""Rates that fall along a formula, in pieces, or behind a warm-up."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.optimizer.lr.scheduler import LRScheduler


class NoamDecay(LRScheduler):
    """Up in a line over the warm-up, then down with the root of the step."""

    def __init__(
        self,
        d_model: int,
        warmup_steps: int,
        learning_rate: float = 1.0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.d_model, self.warmup_steps = d_model, warmup_steps
        super().__init__(learning_rate, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        falling = 1.0 if self.last_epoch == 0 else self.last_epoch**-0.5
        rising = self.warmup_steps**-1.5 * self.last_epoch
        return float(self.base_lr * self.d_model**-0.5 * min(falling, rising))


class PiecewiseDecay(LRScheduler):
    """``values[0]`` before the first boundary, ``values[1]`` from there on, and so on."""

    def __init__(
        self,
        boundaries: Sequence[int],
        values: Sequence[float],
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if len(values) != len(boundaries) + 1:
            raise ValueError(
                f"PiecewiseDecay() has {len(boundaries)} boundaries and {len(values)} values; "
                "there is one value more than there are boundaries."
            )
        self.boundaries, self.values = list(boundaries), list(values)
        super().__init__(last_epoch=last_epoch, verbose=verbose)

    @override
    def get_lr(self) -> float:
        return self.values[bisect_right(self.boundaries, self.last_epoch)]


class _Gamma(LRScheduler):
    """A rate with a factor."""

    def __init__(
        self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose)


class NaturalExpDecay(_Gamma):
    """The rate times e to the power of ``-gamma`` epochs."""

    @override
    def get_lr(self) -> float:
        return self.base_lr * math.exp(-self.gamma * self.last_epoch)


class InverseTimeDecay(_Gamma):
    """The rate divided by 1 + ``gamma`` epochs."""

    @override
    def get_lr(self) -> float:
        return self.base_lr / (1 + self.gamma * self.last_epoch)


class ExponentialDecay(_Gamma):
    """The rate times ``gamma`` to the power of the epoch."""

    @override
    def get_lr(self) -> float:
        return float(self.base_lr * self.gamma**self.last_epoch)


class PolynomialDecay(LRScheduler):
    """Down to ``end_lr`` along a power; with ``cycle``, again over longer spans."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: float,
        decay_steps: int,
        end_lr: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.decay_steps, self.end_lr, self.power, self.cycle = decay_steps, end_lr, power, cycle
        super().__init__(learning_rate, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        at, span = self.last_epoch, self.decay_steps
        if self.cycle:
            span *= max(math.ceil(at / self.decay_steps), 1)
        left = (1 - min(at, span) / span) ** self.power
        return float((self.base_lr - self.end_lr) * left + self.end_lr)


class LinearWarmup(LRScheduler):
    """From ``start_lr`` to ``end_lr`` in a line, then the rate or scheduler as it is."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: float | LRScheduler,
        warmup_steps: int,
        start_lr: float,
        end_lr: float,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.learning_rate = learning_rate
        self.warmup_steps, self.start_lr, self.end_lr = warmup_steps, start_lr, end_lr
        super().__init__(start_lr, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        at = self.last_epoch
        if at < self.warmup_steps:
            return self.start_lr + (self.end_lr - self.start_lr) * at / self.warmup_steps
        if isinstance(self.learning_rate, LRScheduler):
            self.learning_rate.step(at - self.warmup_steps)
            return self.learning_rate()
        return self.learning_rate

    @override
    def state_dict(self) -> dict[str, Any]:
        found = super().state_dict()
        if isinstance(self.learning_rate, LRScheduler):
            found["LinearWarmup_LR"] = self.learning_rate.state_dict()
        return found

    @override
    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().set_state_dict(state_dict)
        if isinstance(self.learning_rate, LRScheduler):
            self.learning_rate.set_state_dict(state_dict["LinearWarmup_LR"])


class MultiStepDecay(LRScheduler):
    """The rate times ``gamma`` for each milestone behind."""

    def __init__(
        self,
        learning_rate: float,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(learning_rate, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        return float(self.base_lr * self.gamma ** bisect_right(self.milestones, self.last_epoch))


class StepDecay(LRScheduler):
    """The rate times ``gamma`` every ``step_size`` epochs."""

    def __init__(
        self,
        learning_rate: float,
        step_size: int,
        gamma: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(learning_rate, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        return float(self.base_lr * self.gamma ** (self.last_epoch // self.step_size))


class LambdaDecay(LRScheduler):
    """The rate times a function of the epoch."""

    def __init__(
        self,
        learning_rate: float,
        lr_lambda: Callable[[int], float],
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(learning_rate, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        return self.base_lr * self.lr_lambda(self.last_epoch)


class MultiplicativeDecay(LambdaDecay):
    """The rate times the product of a function over the epochs so far."""

    @override
    def get_lr(self) -> float:
        rate = self.base_lr
        for epoch in range(1, self.last_epoch + 1):
            rate *= self.lr_lambda(epoch)
        return rate


class LinearLR(LRScheduler):
    """From ``start_factor`` to ``end_factor`` times the rate in a line of ``total_steps``."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: float,
        total_steps: int,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.total_steps, self.start_factor, self.end_factor = total_steps, start_factor, end_factor
        super().__init__(learning_rate, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        way = min(self.last_epoch, self.total_steps) / self.total_steps
        return self.base_lr * (self.start_factor + (self.end_factor - self.start_factor) * way)
