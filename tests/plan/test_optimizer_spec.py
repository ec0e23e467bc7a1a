"""An optimizer that is made anew keeps its arguments and hooks, or is refused."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fleetx import PlanError
from fleetx.plan.optimizer_spec import OptimizerSpec

BUILT_IN = [
    cls
    for cls in vars(torch.optim).values()
    if inspect.isclass(cls) and issubclass(cls, Optimizer) and cls is not Optimizer
]


class Weakened(torch.optim.SGD):
    """Keeps its own argument under its name."""

    def __init__(self, params: Any, lr: float, power: float = 1.0) -> None:
        super().__init__(params, lr=lr)
        self.power = power


class Secret(torch.optim.SGD):
    """Keeps its own argument where nobody finds it."""

    def __init__(self, params: Any, lr: float, power: float = 1.0, **options: Any) -> None:
        super().__init__(params, lr=lr, **options)
        self._scaled = power


def rebuilt(optimizer: Optimizer, model: nn.Module) -> Optimizer:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    twin = nn.Linear(4, 4, bias=False)
    spec = OptimizerSpec.describe(optimizer, names)
    return spec.build(dict(twin.named_parameters()), optimizer)


def test_arguments_that_are_no_defaults_are_kept() -> None:
    model = nn.Linear(4, 4, bias=False)
    built = rebuilt(Weakened(model.parameters(), 0.5, power=0.25), model)
    assert isinstance(built, Weakened)
    assert (built.power, built.param_groups[0]["lr"]) == (0.25, 0.5)


def test_arguments_that_are_lost_are_refused() -> None:
    model = nn.Linear(4, 4, bias=False)
    with pytest.raises(PlanError, match=r"argument 'power' .* after fleet\.distributed_model\(\)"):
        rebuilt(Secret(model.parameters(), 0.5, momentum=0.9), model)


@pytest.mark.parametrize("cls", BUILT_IN, ids=lambda cls: cls.__name__)
def test_every_optimizer_of_torch_can_be_made_anew(cls: type[Optimizer]) -> None:
    model = nn.Linear(4, 4, bias=False)
    given: Any = cls
    assert type(rebuilt(given(model.parameters(), lr=0.5), model)) is cls


def test_hooks_move_over_and_can_be_removed() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer, calls = torch.optim.SGD(model.parameters(), lr=0.1), list[str]()
    first = optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    built = rebuilt(optimizer, model)
    built.step()
    first.remove()
    built.step()
    assert calls == ["before", "after", "after"]
