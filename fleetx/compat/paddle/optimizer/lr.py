"""``paddle.optimizer.lr``: learning rates that a script moves on with ``step()``."""

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

_log = logging.getLogger("fleetx")


class LRScheduler:
    """A learning rate that changes with each ``step()``; calling it gives the one in force."""

    def __init__(
        self, learning_rate: float = 0.1, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        if isinstance(learning_rate, bool) or not isinstance(learning_rate, int | float):
            raise TypeError(f"a learning rate is a number, got {learning_rate!r}")
        self.base_lr = self.last_lr = float(learning_rate)
        self.last_epoch, self.verbose = last_epoch, verbose
        self.step()

    def __call__(self, ticks: int | None = None) -> float:
        """The rate in force, however many runs there were."""
        return self.last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch, or to the one that is named."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self.last_lr = float(self.get_lr())
        if self.verbose:
            name = type(self).__name__
            print(f"Epoch {self.last_epoch}: {name} set learning rate to {self.last_lr}.")  # noqa: T201 (asked for)

    def get_lr(self) -> float:
        """The rate of ``last_epoch``; subclasses say it."""
        raise NotImplementedError

    def state_keys(self) -> None:
        """Say what ``state_dict`` holds; a script's own class may set ``self.keys``."""
        self.keys: list[str] = ["last_epoch", "last_lr"]

    def state_dict(self) -> dict[str, Any]:
        """What ``set_state_dict`` takes back."""
        self.state_keys()
        return {key: vars(self)[key] for key in self.keys if key in vars(self)}

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another run ended."""
        self.state_keys()
        if missing := [key for key in self.keys if key in vars(self) and key not in state_dict]:
            raise RuntimeError(
                f"the state of a learning rate lacks {missing[0]!r}; pass what the state_dict() of "
                f"a {type(self).__name__} returned."
            )
        vars(self).update({key: state_dict[key] for key in self.keys if key in state_dict})

    set_dict = set_state_dict


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


class CosineAnnealingDecay(LRScheduler):
    """Down to ``eta_min`` along half a cosine of ``T_max`` epochs, and up again."""

    def __init__(
        self,
        learning_rate: float,
        T_max: int,
        eta_min: float = 0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.T_max, self.eta_min = T_max, float(eta_min)
        super().__init__(learning_rate, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        wave = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        return self.eta_min + (self.base_lr - self.eta_min) * wave / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine of ``T_0`` epochs, then others that are ``T_mult`` times as long."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: float,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, float(eta_min)
        super().__init__(learning_rate, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        at, length = self.last_epoch, self.T_0
        while at >= length:
            at, length = at - length, length * self.T_mult
        wave = 1 + math.cos(math.pi * at / length)
        return self.eta_min + (self.base_lr - self.eta_min) * wave / 2


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


class OneCycleLR(LRScheduler):
    """Up to ``max_learning_rate`` and down to nearly nothing, over ``total_steps``."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        max_learning_rate: float,
        total_steps: int,
        divide_factor: float = 25.0,
        end_learning_rate: float = 0.0001,
        phase_pct: float = 0.3,
        anneal_strategy: str = "cos",
        three_phase: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if anneal_strategy not in {"cos", "linear"}:
            raise ValueError(f"anneal_strategy is 'cos' or 'linear', got {anneal_strategy!r}")
        self.total_steps = total_steps
        first, top, end = max_learning_rate / divide_factor, max_learning_rate, end_learning_rate
        up = float(phase_pct * total_steps) - 1
        if three_phase:
            down = float(2 * phase_pct * total_steps) - 2
            ends, rates = [0.0, up, down, float(total_steps - 1)], [first, top, first, end]
        else:
            ends, rates = [0.0, up, float(total_steps - 1)], [first, top, end]
        self._ends, self._rates, self._along = ends, rates, anneal_strategy
        super().__init__(first, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        at = self.last_epoch
        if at > self.total_steps:
            raise ValueError(f"OneCycleLR() was made for {self.total_steps} steps, this is {at}")
        phase = next((i for i, end in enumerate(self._ends[1:]) if at <= end), len(self._ends) - 2)
        start, end = self._ends[phase : phase + 2]
        way = (at - start) / (end - start)
        low, high = self._rates[phase : phase + 2]
        if self._along == "cos":
            return high + (low - high) / 2.0 * (1 + math.cos(math.pi * way))
        return (high - low) * way + low


class CyclicLR(LRScheduler):
    """Between two rates, up over ``step_size_up`` and down over ``step_size_down`` steps."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        base_learning_rate: float,
        max_learning_rate: float,
        step_size_up: int,
        step_size_down: int | None = None,
        mode: str = "triangular",
        exp_gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.top, self.up = max_learning_rate, step_size_up
        self.span = step_size_up + (step_size_up if step_size_down is None else step_size_down)
        modes: dict[str, tuple[Callable[[float], float], str]] = {
            "triangular": (lambda cycle: 1.0, "cycle"),
            "triangular2": (lambda cycle: 1 / (2.0 ** (cycle - 1)), "cycle"),
            "exp_range": (lambda step: exp_gamma**step, "iterations"),
        }
        self.scale, self.counts = modes[mode] if scale_fn is None else (scale_fn, scale_mode)
        super().__init__(base_learning_rate, last_epoch, verbose)

    @override
    def get_lr(self) -> float:
        cycle, at = 1 + self.last_epoch // self.span, self.last_epoch % self.span
        way = at / self.up if at <= self.up else (self.span - at) / (self.span - self.up)
        factor = self.scale(cycle if self.counts == "cycle" else self.last_epoch)
        return self.base_lr + (self.top - self.base_lr) * way * factor


class ReduceOnPlateau(LRScheduler):
    """Smaller by ``factor`` when a metric has not become better for ``patience`` steps."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        learning_rate: float,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0,
        epsilon: float = 1e-8,
        verbose: bool = False,
    ) -> None:
        if mode not in {"min", "max"} or threshold_mode not in {"rel", "abs"} or factor >= 1.0:
            raise ValueError(
                "ReduceOnPlateau() takes mode 'min' or 'max', threshold_mode 'rel' or 'abs' and a "
                f"factor below 1, got {mode!r}, {threshold_mode!r} and {factor!r}"
            )
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.epsilon = cooldown, min_lr, epsilon
        self.cooldown_counter = self.num_bad_epochs = self.last_epoch = 0
        self.best: float | None = None
        self.base_lr = self.last_lr = float(learning_rate)
        self.verbose = verbose

    @override
    def state_keys(self) -> None:
        self.keys = ["cooldown_counter", "best", "num_bad_epochs", "last_epoch", "last_lr"]

    @override
    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Look at a metric; ``epoch`` names the epoch."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        value = float(metrics)
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            return
        if self.best is None or self._better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            lower = max(self.last_lr * self.factor, self.min_lr)
            if self.last_lr - lower > self.epsilon:
                self.last_lr = lower

    def _better(self, value: float, best: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        span = abs(best) if self.threshold_mode == "rel" else 1.0
        return sign * value < sign * best - self.threshold * span
