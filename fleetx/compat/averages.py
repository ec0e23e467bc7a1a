"""Averages of parameters over time: ``ExponentialMovingAverage`` and ``ModelAverage``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fleetx.compat.optimizers import Optimizer
from fleetx.compat.rates import schedule_of
from fleetx.static.record.current import default_main_program
from fleetx.static.record.program import Program
from fleetx.static.run.training import training_of


class _Average:
    """Values of the trained parameters of a program, swapped in for a while."""

    def __init__(self) -> None:
        self._program: Program | None = None
        self._kept: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}

    def _parameters(self) -> dict[str, Tensor]:
        program = self._program = self._program or default_main_program()
        training = training_of(program)
        known = program.state.trained()
        return {n: p for n, p in known.items() if training is None or n in training.trained}

    def _values(self) -> dict[str, Tensor]:
        return self._kept

    @contextmanager
    def apply(self, executor: Any = None, need_restore: bool = True) -> Iterator[None]:
        """Compute with the averages inside."""
        with torch.no_grad():
            found = self._parameters()
            self._before = {name: value.detach().clone() for name, value in found.items()}
            for name, value in self._values().items():
                found[name].copy_(value)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    @torch.no_grad()
    def restore(self, executor: Any = None) -> None:
        """Go on with the parameters themselves."""
        found = self._parameters()
        for name, value in self._before.items():
            found[name].copy_(value)


class ExponentialMovingAverage(_Average):
    """``average = decay * average + (1 - decay) * parameter`` after each update."""

    def __init__(self, decay: float = 0.999, thres_steps: Any = None, name: str | None = None):
        super().__init__()
        self._highest, self._updates = float(decay), 0
        self._decay = self._highest
        self._steps = None if thres_steps is None else schedule_of(thres_steps)
        self._program = default_main_program()

    def update(self) -> None:
        """Let each run of the program, from now on, move the averages."""
        after_update(self._program or default_main_program(), self._move)

    @torch.no_grad()
    def _move(self) -> None:
        self._updates += 1
        self._decay = self._decay_now()
        for name, value in self._parameters().items():
            kept = self._kept.setdefault(name, torch.zeros_like(value))
            kept.mul_(self._decay).add_(value, alpha=1 - self._decay)

    def _decay_now(self) -> float:
        """Less than what was given while there are few steps, so that averages begin soon."""
        training = training_of(self._program or default_main_program())
        if self._steps is None or training is None:
            return self._highest
        steps = self._steps(max(training.clock().ticks - 1, 0))
        return min(self._highest, (steps + 1) / (steps + 10))

    @override
    def _values(self) -> dict[str, Tensor]:
        """Without the zeros at which they began."""
        share = 1 - self._decay**self._updates
        return {name: value / share for name, value in self._kept.items() if share}


class ModelAverage(_Average):
    """The mean of the parameters over a window of updates."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        average_window_rate: float,
        parameters: Any = None,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._rate, self._least, self._most = (
            float(average_window_rate),
            int(min_average_window),
            int(max_average_window),
        )
        self._updates = self._counted = 0
        self._old: dict[str, Tensor] = {}
        self._old_counted = 0
        self._program = default_main_program()
        after_update(self._program, self._move)

    @torch.no_grad()
    def _move(self) -> None:
        self._updates += 1
        self._counted += 1
        for name, value in self._parameters().items():
            self._kept.setdefault(name, torch.zeros_like(value)).add_(value)
        full = min(self._most, self._updates * self._rate)
        if self._counted >= self._least and self._counted >= full:
            self._old, self._old_counted = self._kept, self._counted
            self._kept, self._counted = {}, 0

    @override
    def _values(self) -> dict[str, Tensor]:
        count = self._counted + self._old_counted
        names = {**self._old, **self._kept}
        sums: dict[str, Any] = {n: self._kept.get(n, 0) + self._old.get(n, 0) for n in names}
        return {name: value / count for name, value in sums.items()}


def after_update(program: Program, call: Callable[[], None]) -> None:
    """Call after each update of a program that trains."""
    training = training_of(program)
    if training is None:
        raise ValueError(
            "an average follows the updates of a program, and the default main program has none "
            "yet; call optimizer.minimize(loss) first."
        )

    if not isinstance(training.optimizer, Optimizer):
        raise TypeError("an average follows an optimizer of fluid.optimizer or paddle.optimizer")
    training.optimizer.after_steps.append(call)
