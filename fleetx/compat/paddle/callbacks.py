"""``paddle.callbacks``: what is called while ``paddle.Model`` trains, tests and predicts."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917, T201

import os
from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.optimizer.lr import LRScheduler as Schedule

__all__ = ["Callback", "EarlyStopping", "LRScheduler", "ModelCheckpoint", "ProgBarLogger"]


class Callback:
    """Base of all; every moment does nothing unless overridden."""

    def __init__(self) -> None:
        self.model: Any = None
        self.params: dict[str, Any] = {}

    def set_params(self, params: dict[str, Any]) -> None:
        """Learn the settings of a run: epochs, steps, verbose, metrics."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Learn the model."""
        self.model = model

    def on_train_begin(self, logs: Any = None) -> None:
        """Before the first epoch."""

    def on_train_end(self, logs: Any = None) -> None:
        """After the last epoch."""

    def on_eval_begin(self, logs: Any = None) -> None:
        """Before the first batch of a test."""

    def on_eval_end(self, logs: Any = None) -> None:
        """After a test; ``logs`` has its loss and metrics."""

    def on_predict_begin(self, logs: Any = None) -> None:
        """Before the first batch of a prediction."""

    def on_predict_end(self, logs: Any = None) -> None:
        """After a prediction."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Before an epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """After an epoch; ``logs`` has the last loss and the metrics."""

    def on_train_batch_begin(self, step: int, logs: Any = None) -> None:
        """Before a batch that is learned."""

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        """After it; ``logs`` has its loss and the metrics so far."""

    def on_eval_batch_begin(self, step: int, logs: Any = None) -> None:
        """Before a batch of a test."""

    def on_eval_batch_end(self, step: int, logs: Any = None) -> None:
        """After it."""

    def on_predict_batch_begin(self, step: int, logs: Any = None) -> None:
        """Before a batch of a prediction."""

    def on_predict_batch_end(self, step: int, logs: Any = None) -> None:
        """After it."""


class ProgBarLogger(Callback):
    """Prints the loss and the metrics every so many batches."""

    def __init__(self, log_freq: int = 1, verbose: int = 2) -> None:
        super().__init__()
        self.log_freq, self.verbose, self._epoch = int(log_freq), verbose, 0

    @override
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    @override
    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        if self.verbose and step % self.log_freq == 0:
            print(f"epoch {self._epoch} step {step} {_shown(logs)}")

    @override
    def on_eval_end(self, logs: Any = None) -> None:
        if self.verbose:
            print(f"evaluation: {_shown(logs)}")


def _shown(logs: dict[str, Any]) -> str:
    parts = []
    for name, value in logs.items():
        first = value[0] if isinstance(value, (list, tuple)) else value
        if isinstance(first, float) or hasattr(first, "item"):
            parts.append(f"{name} {float(first):.4f}")
    return " ".join(parts)


class ModelCheckpoint(Callback):
    """Saves the model every so many epochs, and at the end."""

    def __init__(self, save_freq: int = 1, save_dir: str | None = None) -> None:
        super().__init__()
        self.save_freq, self.save_dir = int(save_freq), save_dir

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.save_dir and epoch % self.save_freq == 0:
            self.model.save(os.path.join(self.save_dir, str(epoch)))

    @override
    def on_train_end(self, logs: Any = None) -> None:
        if self.save_dir:
            self.model.save(os.path.join(self.save_dir, "final"))


class LRScheduler(Callback):
    """Moves the optimizer's schedule, with every batch or with every epoch."""

    def __init__(self, by_step: bool = True, by_epoch: bool = False) -> None:
        super().__init__()
        if by_step and by_epoch:
            raise ValueError(
                "callbacks.LRScheduler(by_step=True, by_epoch=True) would move the schedule twice; "
                "set one of them to False."
            )
        self.by_step, self.by_epoch = by_step, by_epoch

    def _move(self) -> None:
        schedule = getattr(self.model._optimizer, "_learning_rate", None)
        if isinstance(schedule, Schedule):
            schedule.step()

    @override
    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        if self.by_step:
            self._move()

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.by_epoch:
            self._move()


class EarlyStopping(Callback):
    """Ends training when tests have not become better for a while."""

    def __init__(
        self,
        monitor: str = "loss",
        mode: str = "auto",
        patience: int = 0,
        verbose: int = 1,
        min_delta: float = 0,
        baseline: float | None = None,
        save_best_model: bool = True,
    ) -> None:
        super().__init__()
        if mode not in {"auto", "min", "max"}:
            raise ValueError(f"EarlyStopping(mode={mode!r}) is none of auto, min and max.")
        self.monitor, self.patience, self.verbose = monitor, int(patience), verbose
        self.min_delta, self.save_best_model = abs(float(min_delta)), save_best_model
        self._grows = mode == "max" or (mode == "auto" and "acc" in monitor)
        self._baseline = baseline
        self.save_dir: str | None = None
        self.on_train_begin()

    @override
    def on_train_begin(self, logs: Any = None) -> None:
        worst = float("-inf") if self._grows else float("inf")
        self.best_value = worst if self._baseline is None else self._baseline
        self.wait_epoch = 0

    @override
    def on_eval_end(self, logs: Any = None) -> None:
        found = (logs or {}).get(self.monitor)
        if found is None:
            raise ValueError(
                f"EarlyStopping(monitor={self.monitor!r}) watches what a test does not give: it "
                f"has {', '.join(logs or ())}."
            )
        now = float(found[0] if isinstance(found, (list, tuple)) else found)
        gain = now - self.best_value if self._grows else self.best_value - now
        if gain > self.min_delta:
            self.best_value, self.wait_epoch = now, 0
            if self.save_best_model and self.save_dir:
                self.model.save(os.path.join(self.save_dir, "best_model"))
            return
        self.wait_epoch += 1
        if self.wait_epoch >= self.patience:
            self.model.stop_training = True
            if self.verbose:
                print(f"training ends: {self.monitor} stays at {self.best_value:.5f}")


class Callbacks:
    """All that are called in one run, in their order."""

    def __init__(self, model: Any, given: Any, params: dict[str, Any], **usual: Any) -> None:
        listed = list(given) if isinstance(given, (list, tuple)) else [given] if given else []
        if not any(isinstance(c, ProgBarLogger) for c in listed) and params["verbose"]:
            listed.insert(0, ProgBarLogger(usual.get("log_freq", 1), params["verbose"]))
        if "save_dir" in usual and not any(isinstance(c, ModelCheckpoint) for c in listed):
            listed.append(ModelCheckpoint(usual["save_freq"], usual["save_dir"]))
        if not any(isinstance(c, LRScheduler) for c in listed):
            listed.append(LRScheduler())
        for callback in listed:
            callback.set_model(model)
            callback.set_params(params)
            if isinstance(callback, EarlyStopping):
                callback.save_dir = usual.get("save_dir")
        self._listed: Iterable[Any] = listed

    def call(self, moment: str, *args: Any) -> None:
        """Let all know."""
        for callback in self._listed:
            getattr(callback, moment)(*args)
