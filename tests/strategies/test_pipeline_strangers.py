"""Pipelines of models that nobody here wrote train as one process does."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world
from tests.rotation import rotating
from tests.strategies.pipeline.strangers import STRANGERS, WORDS, batch, built, loss

STEPS = 4


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-3)


def alone(
    name: str, criterion: Any, data: tuple[dict[str, Tensor], Tensor]
) -> tuple[list[float], dict[str, Tensor]]:
    """One process, the whole batch at once."""
    model, losses = built(name), []
    optimizer = adamw(model.parameters())
    inputs, targets = data
    for _ in range(STEPS):
        found = criterion(model(**inputs), targets)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(float(found.detach()))
    return losses, dict(model.state_dict())


def start(stages: int, extras: dict[str, Any], **configs: Any) -> None:
    strategy: Any = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.pipeline_configs = {"accumulate_steps": 4, **configs}
    strategy.hybrid_configs = {"pp_degree": stages, **extras.pop("hybrid_configs", {})}
    for option, value in extras.items():
        setattr(strategy, option, value)
    roles.stop()  # models of an earlier job may still be there
    fleet.init(is_collective=True, strategy=strategy)


def train_and_compare(
    name: str, stages: int, extras: dict[str, Any] | None = None, **configs: Any
) -> Any:
    return train_as_alone(name, loss, batch(name), stages, dict(extras or {}), **configs)


def train_as_alone(
    name: str,
    criterion: Any,
    data: tuple[dict[str, Tensor], Tensor],
    stages: int,
    extras: dict[str, Any],
    **configs: Any,
) -> Any:
    expected, weights = alone(name, criterion, data)
    start(stages, extras, **configs)
    inputs, targets = data
    rows = {key: value[:2] for key, value in inputs.items()}
    model: Any = fleet.distributed_model(built(name), criterion=criterion, sample=rows)
    fleet.distributed_optimizer(adamw(model.parameters()))
    losses = [float(model.train_batch((inputs, targets))) for _ in range(STEPS)]
    assert losses == pytest.approx(expected, abs=2e-5)
    state = fleet.full_state_dict(model, everywhere=True)
    assert state.keys() == weights.keys()
    for path, value in weights.items():
        torch.testing.assert_close(state[path], value, rtol=0, atol=2e-5)
    return model


def cut(name: str, stages: int) -> list[str]:
    blocks = STRANGERS[name].blocks
    return [blocks[1]] if stages == 2 else list(blocks)


@pytest.mark.parametrize("name", rotating(list(STRANGERS), len(STRANGERS)))
@world(2)
def test_all_of_them_on_two_stages(name: str) -> None:
    train_and_compare(name, 2, split=cut(name, 2))


@pytest.mark.rare
@pytest.mark.parametrize("name", STRANGERS)
@world(2)
def test_all_of_them_are_balanced_by_themselves(name: str) -> None:
    train_and_compare(name, 2)


@pytest.mark.rare
@pytest.mark.parametrize("name", STRANGERS)
@world(4)
def test_all_of_them_on_four_stages(name: str) -> None:
    train_and_compare(name, 4, split=cut(name, 4))


def padded() -> tuple[dict[str, Tensor], Tensor]:
    """Labels of which a micro-batch leaves out all, and the others not as many."""
    inputs, targets = batch("gpt2")
    for row, labels in enumerate(targets):
        labels[2 + row // 3 :] = -100
    targets[4:8] = -100
    return inputs, targets


def by_hand(outputs: Any, targets: Tensor) -> Tensor:
    """As scripts shift labels."""
    scores = outputs.logits[..., :-1, :].contiguous()
    labels = targets[..., 1:].contiguous()
    return nn.functional.cross_entropy(scores.view(-1, WORDS), labels.view(-1))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@world(2)
def test_language_models_with_padded_labels(name: str) -> None:
    """Samples of short sentences counted more than those of long ones, without a word."""
    of_the_library: Any = built(name).loss_function

    def shifted(outputs: Any, targets: Tensor) -> Tensor:
        found: Tensor = of_the_library(outputs.logits, targets, vocab_size=WORDS)
        return found

    for criterion in (by_hand, shifted):
        train_as_alone(name, criterion, padded(), 2, {}, split=cut(name, 2))


FOUR_ON_TWO: dict[str, Any] = {"schedule_mode": "interleaved", "stages_per_rank": 2}


@pytest.mark.rare
@world(2)
def test_every_schedule() -> None:
    for name in ("gpt2", "llama", "t5"):
        for mode in ("F-then-B", "zero-bubble"):
            train_and_compare(name, 2, split=cut(name, 2), schedule_mode=mode)
        train_and_compare(name, 2, split=cut(name, 4), **FOUR_ON_TWO)


@pytest.mark.rare
@world(8)
def test_next_to_sharding_and_tensor_parallel() -> None:
    for name in ("gpt2", "llama"):
        extras = {
            "sharding": True,
            "sharding_configs": {"stage": 3, "sharding_degree": 2},
            "tensor_parallel": True,
            "tensor_parallel_configs": {"plan": "transformer", "tensor_parallel_degree": 2},
        }
        train_and_compare(name, 2, extras, split=cut(name, 2))


@pytest.mark.rare
@world(4)
def test_a_head_with_the_bias_of_its_cut_layer_next_to_tensor_parallel() -> None:
    extras = {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"plan": "transformer", "tensor_parallel_degree": 2},
    }
    train_and_compare("bert", 2, extras, split=cut("bert", 2))


def half_precision(name: str, stages: int) -> list[float]:
    """Losses with amp and recompute; on one stage two workers share the batch."""
    first = STRANGERS[name].blocks[0]
    extras = {
        "amp": True,
        "amp_configs": {"dtype": "float16"},
        "recompute": True,
        "recompute_configs": {"checkpoints": [first]},
    }
    inputs, targets = batch(name)
    given = {}
    if stages > 1:
        start(stages, extras)
        given = {"sample": {key: value[:2] for key, value in inputs.items()}}
    else:
        strategy: Any = fleet.DistributedStrategy()
        for option, value in extras.items():
            setattr(strategy, option, value)
        roles.stop()
        fleet.init(is_collective=True, strategy=strategy)
        inputs = {key: value.chunk(2)[fleet.worker_index()] for key, value in inputs.items()}
        targets = targets.chunk(2)[fleet.worker_index()]
    model: Any = fleet.distributed_model(built(name), criterion=loss, **given)
    fleet.distributed_optimizer(adamw(model.parameters()))
    losses = [float(model.train_batch((inputs, targets))) for _ in range(STEPS)]
    return [sum(fleet.util.all_gather(found)) / 2 for found in losses]


@pytest.mark.rare
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@world(2)
def test_half_precision_and_replays_act_on_stages_as_on_whole_models(name: str) -> None:
    assert half_precision(name, 2) == pytest.approx(half_precision(name, 1), abs=5e-4)
