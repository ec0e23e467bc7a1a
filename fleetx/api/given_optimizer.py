"""The optimizer that a script gave away and goes on calling: its calls go through the plan."""

from collections.abc import Callable
from types import MethodType
from typing import Any, Protocol

from torch.optim import Optimizer

from fleetx.engine.strangers import in_plan

CALLS = ("zero_grad", "state_dict", "load_state_dict", "add_param_group")


class Distributed(Protocol):
    """What ``distributed_optimizer`` returned for it."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """End the batch."""


def own_calls(given: Optimizer) -> dict[str, Callable[..., Any]]:
    """What an optimizer does by itself, wherever its calls go."""
    return {name: MethodType(getattr(type(given), name), given) for name in CALLS}


def goes_through(given: Optimizer, distributed: Distributed) -> None:
    """Let calls of the given optimizer be those of the distributed one.

    Methods of the instance, as schedulers make of ``step``; a copy of the optimizer is plain again.
    """
    own_step = given.step

    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        # The plan may have kept this very optimizer to run.
        return own_step(closure) if in_plan() else distributed.step(closure)

    vars(given)["step"] = MethodType(step, given)
    for name in CALLS:
        vars(given)[name] = getattr(distributed, name)
    # A scaler shall divide by itself and not tell it past step().
    vars(given)["_step_supports_amp_scaling"] = False
