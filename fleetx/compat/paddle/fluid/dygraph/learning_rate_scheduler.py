"""``paddle.fluid.dygraph.learning_rate_scheduler``: rates that move with every update, or epoch."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

import math
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.optimizer import lr
from fleetx.compat.paddle.optimizer.lr import LambdaDecay as EpochLambda
from fleetx.compat.paddle.optimizer.lr import MultiStepDecay as EpochMultiStep
from fleetx.compat.paddle.optimizer.lr import ReduceOnPlateau
from fleetx.compat.paddle.optimizer.lr import StepDecay as EpochStep


class LearningRateDecay:
    """Base of rates that move with every update: a script's own class defines ``step``."""

    def __init__(self, begin: int = 0, step: int = 1, dtype: Any = "float32") -> None:
        self.step_num, self.step_size = int(begin), int(step)
        self._begin = int(begin)

    def __call__(self, ticks: int | None = None) -> float:
        """The rate behind so many updates; without a number, the next one."""
        if ticks is None:
            found = float(self.step())
            self.step_num += self.step_size
            return found
        self.step_num = self._begin + ticks * self.step_size
        return float(self.step())

    def step(self) -> float:
        """The rate at ``self.step_num``."""
        raise NotImplementedError("A LearningRateDecay needs a method `step`; define it.")


class PiecewiseDecay(LearningRateDecay):
    """``values[0]`` before the first boundary, ``values[1]`` from there on, and so on."""

    def __init__(
        self,
        boundaries: Sequence[int],
        values: Sequence[float],
        begin: int = 0,
        step: int = 1,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(begin, step, dtype)
        self.boundaries, self.values = list(boundaries), list(values)

    @override
    def step(self) -> float:
        passed = sum(self.step_num >= bound for bound in self.boundaries)
        return self.values[passed]


class _Periods(LearningRateDecay):
    """A rate, a factor, and how many updates a period has."""

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        begin: int = 0,
        step: int = 1,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(begin, step, dtype)
        self.learning_rate, self.decay_steps = learning_rate, decay_steps
        self.decay_rate, self.staircase = decay_rate, staircase

    def _periods(self) -> float:
        found = self.step_num / self.decay_steps
        return math.floor(found) if self.staircase else found


class ExponentialDecay(_Periods):
    """The rate times ``decay_rate`` to the power of the periods so far."""

    @override
    def step(self) -> float:
        return float(self.learning_rate * self.decay_rate ** self._periods())


class NaturalExpDecay(_Periods):
    """The rate times e to the power of minus ``decay_rate`` periods."""

    @override
    def step(self) -> float:
        return self.learning_rate * math.exp(-self.decay_rate * self._periods())


class InverseTimeDecay(_Periods):
    """The rate divided by 1 + ``decay_rate`` periods."""

    @override
    def step(self) -> float:
        return self.learning_rate / (1 + self.decay_rate * self._periods())


class PolynomialDecay(LearningRateDecay):
    """Down to ``end_learning_rate`` along a power; with ``cycle``, again over longer spans."""

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        begin: int = 0,
        step: int = 1,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(begin, step, dtype)
        self.learning_rate, self.decay_steps = learning_rate, decay_steps
        self.end_learning_rate, self.power, self.cycle = end_learning_rate, power, cycle

    @override
    def step(self) -> float:
        span, at = self.decay_steps, self.step_num
        if self.cycle:
            span *= max(math.ceil(at / span), 1)
        left = 1 - min(at, span) / span
        fall = self.learning_rate - self.end_learning_rate
        return float(fall * left**self.power + self.end_learning_rate)


class CosineDecay(LearningRateDecay):
    """Half a cosine over the epochs, one step down for each."""

    def __init__(
        self,
        learning_rate: float,
        step_each_epoch: int,
        epochs: int,
        begin: int = 0,
        step: int = 1,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(begin, step, dtype)
        self.learning_rate, self.step_each_epoch = learning_rate, step_each_epoch
        self.epochs = epochs

    @override
    def step(self) -> float:
        epoch = math.floor(self.step_num / self.step_each_epoch)
        return self.learning_rate * 0.5 * (math.cos(epoch * math.pi / self.epochs) + 1)


class NoamDecay(LearningRateDecay):
    """Up in a line over the warm-up, then down with the root of the update."""

    def __init__(
        self,
        d_model: int,
        warmup_steps: int,
        begin: int = 1,
        step: int = 1,
        dtype: Any = "float32",
        learning_rate: float = 1.0,
    ) -> None:
        super().__init__(begin, step, dtype)
        self.d_model, self.warmup_steps = d_model, warmup_steps
        self.learning_rate = learning_rate

    @override
    def step(self) -> float:
        falling = self.step_num**-0.5 if self.step_num else 1.0
        rising = self.warmup_steps**-1.5 * self.step_num
        return float(self.learning_rate * self.d_model**-0.5 * min(falling, rising))


class LinearLrWarmup(LearningRateDecay):
    """From ``start_lr`` to ``end_lr`` in a line, then the rate, or the decay, as it is."""

    def __init__(
        self,
        learning_rate: Any,
        warmup_steps: int,
        start_lr: float,
        end_lr: float,
        begin: int = 1,
        step: int = 1,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(begin, step, dtype)
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
        self.start_lr, self.end_lr = start_lr, end_lr

    @override
    def __call__(self, ticks: int | None = None) -> float:
        later = self.learning_rate
        if isinstance(later, LearningRateDecay):  # it moves along
            self._later = later(ticks)
        else:
            self._later = float(later)
        return super().__call__(ticks)

    @override
    def step(self) -> float:
        if self.step_num < self.warmup_steps:
            slope = (self.end_lr - self.start_lr) / self.warmup_steps
            return self.start_lr + slope * self.step_num
        return self._later


class _Epochs:
    """Rates that move when a script says that an epoch is over."""

    def epoch(self, epoch: int | None = None) -> None:
        """An epoch is over."""
        assert isinstance(self, lr.LRScheduler)
        self.step(epoch)


class StepDecay(_Epochs, EpochStep):
    """Times ``decay_rate`` after every ``step_size`` epochs."""

    def __init__(self, learning_rate: float, step_size: int, decay_rate: float = 0.1) -> None:
        super().__init__(learning_rate, step_size, decay_rate)


class MultiStepDecay(_Epochs, EpochMultiStep):
    """Times ``decay_rate`` at every milestone."""

    def __init__(
        self, learning_rate: float, milestones: Sequence[int], decay_rate: float = 0.1
    ) -> None:
        super().__init__(learning_rate, list(milestones), decay_rate)


class LambdaDecay(_Epochs, EpochLambda):
    """Times what a function says of the epoch."""

    def __init__(self, learning_rate: float, lr_lambda: Any) -> None:
        super().__init__(learning_rate, lr_lambda)


class ReduceLROnPlateau(ReduceOnPlateau):
    """Lower, when a loss no longer falls."""

    def __init__(
        self,
        learning_rate: float,
        mode: str = "min",
        decay_rate: float = 0.1,
        patience: int = 10,
        verbose: bool = False,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0,
        eps: float = 1e-8,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(
            learning_rate,
            mode,
            decay_rate,
            patience,
            threshold,
            threshold_mode,
            cooldown,
            min_lr,
            eps,
            verbose,
        )
