"""The state of an optimizer belongs to its layout; another one is refused in a sentence."""

from typing import Any

import pytest
import torch

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world
from tests.layouts import transformer


def begin(**flags: Any) -> tuple[Any, Any]:
    strategy: Any = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    roles.stop()  # models of an earlier job may still be there
    fleet.init(is_collective=True, strategy=strategy)
    model: Any = fleet.distributed_model(transformer.build(), criterion=transformer.loss)
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    model.train_batch(transformer.batch(0))
    return model, optimizer


@world(2)
def test_whole_state_does_not_become_parts_and_parts_not_whole() -> None:
    _, plain = begin()
    _, sharded = begin(sharding=True)
    with pytest.raises(ValueError, match=r"'exp_avg' is whole, and its parameter is spread"):
        sharded.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match=r"'exp_avg' is spread, and its parameter is whole"):
        plain.load_state_dict(sharded.state_dict())
    sharded.load_state_dict(sharded.state_dict())
    plain.load_state_dict(plain.state_dict())


@world(2)
def test_a_stage_does_not_take_the_state_of_the_whole_model() -> None:
    _, plain = begin()
    split = {"split": ["layers.2"], "accumulate_steps": 2}
    _, staged = begin(pipeline=True, pipeline_configs=split)
    count = len(list(transformer.build().parameters()))
    with pytest.raises(ValueError, match=rf"speaks of {count} parameters, and this rank holds"):
        staged.load_state_dict(plain.state_dict())
    staged.load_state_dict(staged.state_dict())
