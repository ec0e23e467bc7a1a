"""Rates that come back: cosines, circles, one cycle."""

import math
from collections.abc import Callable

from typing_extensions import override

from fleetx.compat.paddle.optimizer.lr.scheduler import LRScheduler


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
