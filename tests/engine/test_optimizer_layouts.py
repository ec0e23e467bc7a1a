"""The state of an optimizer belongs to its layout; another one is refused in a sentence."""

import copy
import re
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
    rows = transformer.batch(0)[0][:2]
    model: Any = fleet.distributed_model(
        transformer.build(), criterion=transformer.loss, sample=rows
    )
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    model.train_batch(transformer.batch(0))
    return model, optimizer


def as_torch_saves(optimizer: Any) -> dict[str, Any]:
    """Its state as a run without fleetx would save it, which says nothing of its layout."""
    state = optimizer.state_dict()
    return {key: state[key] for key in ("state", "param_groups")}


@world(2)
def test_whole_state_does_not_become_parts_and_parts_not_whole() -> None:
    _, plain = begin()
    _, sharded = begin(sharding=True)
    with pytest.raises(ValueError, match=r"'exp_avg' is whole, and its parameter is spread"):
        sharded.load_state_dict(as_torch_saves(plain))
    with pytest.raises(ValueError, match=r"'exp_avg' is spread, and its parameter is whole"):
        plain.load_state_dict(as_torch_saves(sharded))
    with pytest.raises(ValueError, match=r"saved on pp 1, dp 2, .* runs on pp 1, dp 1, sharding 2"):
        sharded.load_state_dict(plain.state_dict())
    sharded.load_state_dict(sharded.state_dict())
    plain.load_state_dict(plain.state_dict())


@world(2)
def test_a_stage_does_not_take_the_state_of_the_whole_model() -> None:
    _, plain = begin()
    split = {"split": ["layers.2"], "accumulate_steps": 2}
    _, staged = begin(pipeline=True, pipeline_configs=split)
    count = len(list(transformer.build().parameters()))
    with pytest.raises(ValueError, match=rf"speaks of {count} parameters, and this rank holds"):
        staged.load_state_dict(as_torch_saves(plain))
    with pytest.raises(ValueError, match=r"what each worker keeps .* cannot be dealt anew"):
        plain.load_state_dict(staged.state_dict())
    staged.load_state_dict(staged.state_dict())


@world(1)
def test_a_state_must_be_that_of_these_parameters() -> None:
    _, optimizer = begin()
    state = optimizer.state_dict()
    layout = state["layout"]
    first, second, *others = layout["parameters"]
    broken: dict[str, dict[str, Any]] = {
        "in the order in which": {"parameters": [second, first, *others]},
        "in other places, on this worker": {"cuts": {"pipeline": [["0"], ["1"]]}},
        "and has ['x'] besides": {"parameters": ["x", second, *others]},
        "on this worker; load": {"shapes": [[1], *layout["shapes"][1:]]},
    }
    for sentence, change in broken.items():
        if "order" in sentence:
            change["shapes"] = [layout["shapes"][1], layout["shapes"][0], *layout["shapes"][2:]]
        with pytest.raises(ValueError, match=re.escape(sentence)):
            optimizer.load_state_dict({**state, "layout": {**layout, **change}})
    with pytest.raises(ValueError, match=r"numbers for \[99\], which are in none of its groups"):
        optimizer.load_state_dict({**state, "state": {**state["state"], 99: {}}})
    odd = {**state["state"], 0: {**state["state"][0], "exp_avg": torch.zeros(3)}}
    with pytest.raises(ValueError, match=r"'exp_avg' has the shape \[3\], and its parameter"):
        optimizer.load_state_dict({**as_torch_saves(optimizer), "state": odd})
    optimizer.load_state_dict(state)


@world(2)
def test_replicas_take_the_state_of_one_of_them() -> None:
    """As ordinary scripts save it: on worker 0, for as many workers as there will be."""
    _, optimizer = begin()
    state = optimizer.state_dict()
    state["layout"]["mesh"]["dp"] = 7
    optimizer.load_state_dict(state)


def file_of_another(culprit: int) -> str:
    """What a worker hears when one of them loads the file of another."""
    _, optimizer = begin(sharding=True)
    state, before = optimizer.state_dict(), copy.deepcopy(optimizer.state_dict()["param_groups"])
    if fleet.worker_index() == culprit:
        state["layout"]["place"] = [0, 1 - culprit, 0]
    state["param_groups"][0]["lr"] = 7.0
    with pytest.raises(ValueError, match="worker") as caught:
        optimizer.load_state_dict(state)
    assert optimizer.state_dict()["param_groups"] == before, "nothing is loaded by anybody"
    return str(caught.value)


def test_the_file_of_another_worker_is_refused_by_all() -> None:
    own, other = (world(2).run(file_of_another, 1)[index] for index in (1, 0))
    assert own.startswith("the state is that of another worker")
    assert other == f"all workers stop, because one cannot go on. worker 1: ValueError: {own}"
