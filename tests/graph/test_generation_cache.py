"""Pipelines of models that keep keys and values unless they are told not to."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx import roles
from fleetx.graph import generation_cache
from fleetx.plan.error import PlanError
from fleetx.strategies.pipeline import cutting
from fleetx.strategies.pipeline.accepted_inputs import Accepted
from fleetx.testing import world
from tests.libraries import transformers as hf
from tests.strategies.pipeline.strangers import batch, built


def llama() -> nn.Module:
    sizes: dict[str, Any] = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, **heads, num_hidden_layers=2))


class Wraps(nn.Module):
    """Whoever calls a model of a library inside of their own does not know its options."""

    def __init__(self) -> None:
        super().__init__()
        self.lm: Any = llama()

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.lm(ids).logits
        return logits


def cut(model: nn.Module, sample: dict[str, Any], stages: int = 2) -> cutting.Cut:
    return cutting.cut(
        model,
        stages,
        split=(),
        accepted=Accepted(model, sample),
        device=torch.device("cpu"),
        agreed=lambda costs: costs,
    )


IDS = torch.ones(2, 3, dtype=torch.long)


@pytest.mark.rare
def test_blocks_are_cut_apart_although_the_model_keeps_keys_and_values() -> None:
    model = Wraps()
    assert model.lm.config.use_cache, "what transformers does unless it is told otherwise"
    found = cut(model, {"ids": IDS})
    assert [part.modules & {"lm.model.layers.0", "lm.lm_head"} for part in found.parts[True]] == [
        {"lm.model.layers.0"},
        {"lm.lm_head"},
    ]
    assert not found.remark
    assert model.lm.config.use_cache, "the config is the user's"


def test_keys_and_values_that_are_asked_for_are_refused() -> None:
    with pytest.raises(PlanError, match=r"'use_cache' = True.*leave 'use_cache' out"):
        cut(llama(), {"input_ids": IDS, "use_cache": True})


def test_the_same_word_of_others_is_left_alone() -> None:
    model = nn.Linear(1, 1)
    model.config = SimpleNamespace(use_cache=True)  # type: ignore[assignment]
    assert generation_cache.switches(model) == []


def test_configs_are_as_before_when_a_batch_fails() -> None:
    model: Any = llama()

    def failing() -> None:
        with generation_cache.switched_off(generation_cache.switches(model)):
            assert not model.config.use_cache
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert model.config.use_cache


@pytest.mark.rare
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "gemma", "mixtral", "t5", "whisper"])
@pytest.mark.parametrize("stages", [2, 4])
def test_models_of_libraries_are_balanced_as_they_come(name: str, stages: int) -> None:
    rows = {key: value[:2] for key, value in batch(name)[0].items()}
    model = built(name)
    assert generation_cache.switches(model)
    found = cut(model, dict(rows), stages)
    assert not found.remark
    for part in found.parts[True]:
        layers = [m for name in part.modules for m in model.get_submodule(name).modules()]
        assert len(layers) > 1, "no stage is a head alone"


def replayed(recompute: bool) -> tuple[Any, list[Tensor]]:
    """A model of transformers that keeps keys and values, after a backward."""
    strategy = fleet.DistributedStrategy()
    if recompute:
        strategy.recompute = True
        strategy.recompute_configs = {"checkpoints": ["model.layers.*"]}
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    model: Any = fleet.distributed_model(llama())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.minimize(model(input_ids=IDS).logits.square().mean())
    return model, [parameter.detach().clone() for parameter in model.parameters()]


@world(1)
def test_blocks_that_run_twice_keep_no_keys_and_values() -> None:
    _, expected = replayed(recompute=False)
    roles.stop()
    model, found = replayed(recompute=True)
    torch.testing.assert_close(found, expected)
    assert model.config.use_cache, "the config is the user's"
    with torch.no_grad():
        assert model(input_ids=IDS).past_key_values is not None, "generating has its cache"
    with pytest.raises(ValueError, match=r"strategy\.recompute runs twice would write their keys"):
        model(input_ids=IDS, use_cache=True)
    roles.stop()
