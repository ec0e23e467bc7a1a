"""The servers among optimizers: what stands for them, and the rule per row that goes with one."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer
from typing_extensions import override

from fleetx.ps.rules import SGD, Adagrad, Adam, Rule


class RemoteOptimizer(Optimizer):
    """Stands for the servers among optimizers: its step hands gradients over."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, options)
        self.deliver: Callable[[], None] = _nobody

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is None, "the plan runs the forward, not the optimizer"
        self.deliver()


def _nobody() -> None:
    raise AssertionError("the plan gives every remote optimizer somebody to deliver to")


def sparse_rule(name: str, options: Mapping[str, Any]) -> Rule:
    """The rule per row that goes with a torch optimizer."""
    rate = float(options["lr"])
    if name == "Adagrad":
        return Adagrad(rate, float(options["eps"]), float(options["initial_accumulator_value"]))
    if name in ("Adam", "AdamW"):
        first, second = options["betas"]
        return Adam(rate, float(first), float(second), float(options["eps"]))
    return SGD(rate)
