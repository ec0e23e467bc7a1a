"""A rate that falls when a metric stands still."""

from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.optimizer.lr.scheduler import LRScheduler


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
