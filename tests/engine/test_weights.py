"""Whole states hold what the plain model saves, beside tensors, too."""

from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world


class Noted(nn.Linear):
    """Its extra state is what a test gave it."""

    note: Any = None

    def get_extra_state(self) -> Any:
        return self.note

    def set_extra_state(self, state: Any) -> None:
        self.note = state


def begin(**flags: Any) -> Any:
    strategy: Any = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    roles.stop()  # models of an earlier job may still be there
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    return fleet.distributed_model(nn.Sequential(Noted(4, 4), nn.ReLU(), Noted(4, 2)))


@world(2)
def test_extra_states_come_and_go_back_under_any_plan() -> None:
    for flags in ({}, {"sharding": True}, {"sharding": True, "sharding_configs": {"stage": 3}}):
        model = begin(**flags)
        # Nothing has to travel, so that it may be anything.
        model[0].note, model[2].note = {"seen": {1, 2}}, torch.arange(3)
        state = fleet.full_state_dict(model, everywhere=True)
        assert list(state) == list(model.state_dict())
        assert state["0._extra_state"] == {"seen": {1, 2}}
        assert torch.equal(state["2._extra_state"], torch.arange(3))
        model[0].note["seen"].add(3)
        model[2].note += 1
        before = {name: value.clone() for name, value in state.items() if "extra" not in name}
        fleet.load_full_state_dict(model, state)
        assert model[0].note == {"seen": {1, 2}}
        assert torch.equal(model[2].note, torch.arange(3))
        after = fleet.full_state_dict(model, everywhere=True)
        assert all(torch.equal(after[name], value) for name, value in before.items())


@world(1)
def test_a_state_without_them_is_refused() -> None:
    model = begin()
    state = fleet.full_state_dict(model)
    del state["0._extra_state"]
    with pytest.raises(ValueError, match=r"lacks \['0._extra_state'\]"):
        fleet.load_full_state_dict(model, state)
