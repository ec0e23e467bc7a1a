"""What is kept between updates: valid with the update, and where recorded steps look for it."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from fleetx.plan.recorded import Recorded
from fleetx.strategies.dgc.momentum_correction import Ledger, Rule

SIZE = 6


def rule(name: str = "weight") -> Rule:
    parameter = Parameter(torch.zeros(SIZE))
    parameter.grad = torch.zeros(SIZE)
    return Rule(name, parameter, momentum=0.9, nesterov=False, decay=0.0)


def kept(ledger: Ledger, mine: Rule) -> list[Tensor]:
    return [*ledger.recall(mine)]


def updated(
    ledger: Ledger,
    mine: Rule,
    number: float,
    moved: bool = True,
    recorded: Recorded | None = None,
) -> None:
    ledger.recall(mine)
    ledger.enter(mine, *(torch.full((SIZE,), float(value)) for value in (number, -number)))
    ledger.close([mine], moved, recorded)


def holds(tensors: Sequence[Tensor], number: float) -> bool:
    expected = [torch.full((SIZE,), float(value)) for value in (number, -number)]
    return all(torch.equal(mine, value) for mine, value in zip(tensors, expected, strict=True))


def test_nothing_is_copied_while_nothing_is_recorded() -> None:
    ledger, mine = Ledger(torch.device("cpu")), rule()
    ledger.recall(mine)
    velocity, waiting = torch.ones(SIZE), torch.ones(SIZE)
    ledger.enter(mine, velocity, waiting)
    ledger.close([mine], moved=True)
    assert ledger.recall(mine).velocity is velocity
    assert ledger.state_dict()["v"]["weight"] is waiting


def test_from_the_first_recorded_update_on_everything_is_written_where_it_lies() -> None:
    ledger, mine = Ledger(torch.device("cpu")), rule()
    updated(ledger, mine, 1)
    before = kept(ledger, mine)
    updated(ledger, mine, 2, recorded=Recorded())
    assert holds(before, 2)
    updated(ledger, mine, 3)  # one that is not recorded, of another shape
    assert holds(before, 3)
    updated(ledger, mine, 4, moved=False)
    assert holds(before, 3)
    assert all(new is old for new, old in zip(kept(ledger, mine), before, strict=True))
    assert ledger.state_dict()["step"] == 3


@pytest.mark.parametrize("number", [5.0, math.inf, math.nan])
def test_the_flag_of_a_recorded_step_takes_everything_back(number: float) -> None:
    ledger, mine = Ledger(torch.device("cpu")), rule()
    updated(ledger, mine, 1)
    updated(ledger, mine, 2, recorded=Recorded(undone=torch.zeros(1)))
    assert holds(kept(ledger, mine), 2)
    assert ledger.state_dict()["step"] == 2
    updated(ledger, mine, number, recorded=Recorded(undone=torch.ones(1)))
    assert holds(kept(ledger, mine), 2)
    assert ledger.state_dict()["step"] == 2


def test_a_state_that_was_saved_stays_what_it_was() -> None:
    ledger, mine = Ledger(torch.device("cpu")), rule()
    updated(ledger, mine, 1)
    updated(ledger, mine, 2, recorded=Recorded())
    state = ledger.state_dict()
    updated(ledger, mine, 3, recorded=Recorded())
    assert holds([state["u"]["weight"], state["v"]["weight"]], 2)
    ledger.load_state_dict(state, [mine])
    assert ledger.state_dict()["step"] == ledger.updates == 2
    assert holds(kept(ledger, mine), 2)
