"""The servers among optimizers: what stands for them, and the rule per row that goes with one."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer
from typing_extensions import override

from fleetx.ps.tables.rules import SGD, Adagrad, Adam, Rule


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


_RULED = ("SGD", "Adagrad", "Adam", "AdamW", "SparseAdam")
_OFF = {"weight_decay": 0, "momentum": 0, "lr_decay": 0, "amsgrad": False, "maximize": False}
"""Options that rows do not have, and what leaves them out."""


def sparse_rule(name: str, options: Mapping[str, Any]) -> Rule:
    """The rule per row that goes with a torch optimizer; what rows cannot do is refused."""
    if name not in _RULED:
        raise ValueError(
            f"the optimizer is {name}, and rows of a table are moved by SGD, Adagrad or Adam; use "
            "one of these, or give the table a rule of its own: "
            "SparseEmbedding(..., rule=fleetx.nn.Adagrad(0.1))"
        )
    for option, off in _OFF.items():
        if options.get(option, off) != off:
            raise ValueError(
                f"the optimizer has {option}={options[option]!r}, which would be left out for rows "
                "of a table: they only move when their batch comes; give the tables a group of "
                f"the optimizer with {option}={off!r} (params=[*model.words.parameters()]), or a "
                "rule of their own: SparseEmbedding(..., rule=fleetx.nn.SGD(0.1))"
            )
    rate = float(options["lr"])
    if name == "Adagrad":
        return Adagrad(rate, float(options["eps"]), float(options["initial_accumulator_value"]))
    if name != "SGD":
        first, second = options["betas"]
        return Adam(rate, float(first), float(second), float(options["eps"]))
    return SGD(rate)
