"""A torch optimizer described before its parameters are known."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn, optim

from fleetx.api.grad_clip import GradClip
from fleetx.expected import NUMBER, Kind, expect
from fleetx.plan.error import PlanError

Schedule = Callable[[int], float]
"""Number of runs before this one -> learning rate."""


_CLASS = Kind(
    "a class of torch.optim, such as torch.optim.SGD",
    lambda cls: isinstance(cls, type) and issubclass(cls, optim.Optimizer),
)
_RATE = NUMBER.such_as("a number, or a schedule of fleetx.static.lr,")


class OptimizerOptions:
    """Any class of ``torch.optim`` and its options; a program supplies the parameters.

    ``static.Optimizer`` is what users make; this is the part of it that training needs.
    """

    def __init__(
        self,
        cls: type[optim.Optimizer],
        *,
        lr: float | Schedule | None = None,
        grad_clip: GradClip | None = None,
        **options: Any,
    ) -> None:
        expect("static.Optimizer", "cls", cls, _CLASS)
        if unknown := sorted(options.keys() - inspect.signature(cls).parameters.keys()):
            raise TypeError(f"torch.optim.{cls.__name__} has no option {', '.join(unknown)}")
        if lr is not None and not callable(lr):
            expect("static.Optimizer", "lr", lr, _RATE)
        self.cls, self.grad_clip = cls, grad_clip
        self.schedule: Schedule | None = lr if callable(lr) else None
        first = lr(0) if callable(lr) else lr
        self.options: Mapping[str, Any] = options if first is None else {**options, "lr": first}

    def schedule_of(self, group: Mapping[str, Any]) -> Schedule | None:
        """What says the learning rate of a group of parameters; None if it stays."""
        return self.schedule

    def build(self, parameters: Sequence[nn.Parameter], *, fused: bool = False) -> optim.Optimizer:
        """The optimizer over these parameters; ``fused`` moves all of them in few kernels."""
        if not fused:
            return self.cls(list(parameters), **self.options)
        if "foreach" not in inspect.signature(self.cls).parameters:
            raise PlanError(
                f"build_strategy.fuse_all_optimizer_ops = True cannot be in force: "
                f"{self.cls.__name__} moves parameters one by one. Leave it False."
            )
        return self.cls(list(parameters), **{"foreach": True, **self.options})
