"""A plan that is tried says nothing to the user, whose job may get another one."""

import logging

import torch
from torch import Tensor, nn
from typing_extensions import override

import fleetx as fleet
from fleetx.api.session import Given
from fleetx.api.trials import Trial
from fleetx.auto.choose import subject_of
from fleetx.plan.compose import compose
from fleetx.testing import world

SAID = logging.getLogger("fleetx.strategies.of_a_test")


class Talking(nn.Linear):
    @override
    def forward(self, x: Tensor) -> Tensor:
        SAID.info("a note")
        SAID.warning("a warning")
        return super().forward(x)


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said = set[str]()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.name == SAID.name:
            self.said.add(record.getMessage())


def said(level: int) -> tuple[set[str], set[str], bool]:
    """What is said while a plan is tried, and what afterwards, if fleetx says so much."""
    ours, kept = logging.getLogger("fleetx"), Kept()
    fleet.init(is_collective=True)
    model, x = Talking(4, 2), torch.zeros(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    subject = subject_of(model, sample=x, optimizer=optimizer, device=torch.device("cpu"))
    rule = subject.rule()
    assert rule is not None
    before = ours.level
    ours.setLevel(level)
    ours.addHandler(kept)
    try:
        plan = compose(fleet.DistributedStrategy().request(), 1)
        took = Trial(Given(model, sample=x), rule).took(plan, 8, 1)
        meanwhile, kept.said = kept.said, set()
        model(x)
    finally:
        ours.removeHandler(kept)
        ours.setLevel(before)
    return meanwhile, kept.said, took < float("inf")


def test_a_try_gives_no_notes_but_warnings() -> None:
    (found,) = world(1).run(said, logging.INFO)
    assert found == ({"a warning"}, {"a note", "a warning"}, True)


def test_whoever_wants_to_hear_less_does() -> None:
    (found,) = world(1).run(said, logging.ERROR)
    assert found == (set(), set(), True)
