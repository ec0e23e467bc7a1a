"""A script that saves one worker's part of a model hears of it; whoever knows what it does, not."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

import fleetx as fleet
from fleetx.testing import world
from tests.libraries import transformers
from tests.rotation import rotating

NAME = "fleetx.api.parts_of_state"


@contextmanager
def said() -> Iterator[list[str]]:
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(NAME).addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger(NAME).removeHandler(handler)


def gpt() -> Any:
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config)


def distributed(**flags: Any) -> Any:
    strategy = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    ids = torch.zeros(4, 8, dtype=torch.long)
    sample = {"input_ids": ids, "labels": ids} if strategy.pipeline else None
    return fleet.distributed_model(gpt(), sample=sample)


SPREAD: dict[str, dict[str, Any]] = {
    "sharding": {"sharding": True, "sharding_configs": {"stage": 3}},
    "tensor_parallel": {
        "tensor_parallel": True,
        "hybrid_configs": {"mp_degree": 2},
        "tensor_parallel_configs": {"plan": "transformer"},
    },
    "pipeline": {
        "pipeline": True,
        "hybrid_configs": {"pp_degree": 2},
        "pipeline_configs": {"accumulate_steps": 2, "micro_batch_size": 2},
    },
}


@pytest.mark.parametrize("flag", rotating([*SPREAD], 3))
@world(2)
def test_a_state_that_is_a_part_is_told_once_with_the_line(flag: str) -> None:
    model = distributed(**SPREAD[flag])
    with said() as found:
        whole = fleet.full_state_dict(model)
        get_model_state_dict(model)
        assert found == [], "they know what they do"
        model.state_dict()
        model.state_dict()
    assert len(found) == 1
    assert "test_parts_of_state.py:" in found[0]
    expected = r"[1-9]\d* live on" if flag == "pipeline" else r"[1-9]\d* are cut \("
    assert re.search(expected, found[0]), found
    assert not fleet.is_first_worker() or f"of {len(whole)} tensors" in found[0]


@world(2)
def test_a_module_around_the_model_changes_nothing() -> None:
    around = nn.Sequential(distributed(**SPREAD["sharding"]))
    with said() as found:
        around.state_dict()
    assert len(found) == 1
    assert "test_parts_of_state.py:" in found[0]


@pytest.mark.parametrize(("workers", "flags"), [(1, SPREAD["sharding"]), (2, {})])
def test_a_state_that_is_whole_is_not_worth_a_word(workers: int, flags: dict[str, Any]) -> None:
    assert world(workers).run(words, flags) == [[]] * workers


def words(flags: dict[str, Any]) -> list[str]:
    model = distributed(**flags)
    with said() as found:
        model.state_dict()
    return found


@world(2)
def test_a_module_around_it_asks_for_the_whole() -> None:
    model = distributed()
    around = nn.ModuleDict({"student": model, "other": nn.Linear(2, 2)})
    with said() as found:
        state = around.state_dict()
    assert "student.lm_head.weight" in state
    assert "other.weight" in state
    assert not found
