"""What ranks compute is counted before anything runs: models of others against torch's counter."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import fleetx as fleet
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.subject import Subject
from fleetx.plan.work import Work
from tests.libraries import torchvision, transformers

LENGTH, WORDS = 16, 96


def llama(layers: int = 2) -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=WORDS,
        use_cache=False,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config)


def text(samples: int) -> dict[str, Tensor]:
    ids = torch.zeros(samples, LENGTH, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def strategy(**flags: Any) -> fleet.DistributedStrategy:
    made = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(made, name, value)
    return made


def work(model: nn.Module, sample: Any, flags: Any = None, rank: int = 0, **more: Any) -> Work:
    workers = {"tensor_parallel": 2, "pipeline": 2}
    asked = strategy(**(flags or {})).request()
    plan = compose(asked, max([workers.get(name, 1) for name in asked.strategies], default=1))
    found = Accounts(plan, Subject(model=model, sample=sample, **more)).share(rank).work
    assert found is not None
    return found


def forward_of(found: Work) -> float:
    return float(found.operations.sum())


def backward_of(found: Work) -> float:
    return float((found.operations * found.backwards).sum())


@pytest.mark.parametrize("name", ["resnet", "llama"])
def test_operations_are_those_that_torch_counts(name: str) -> None:
    images = torch.randn(2, 3, 32, 32)
    model = torchvision.models.resnet18() if name == "resnet" else llama()
    sample: Any = images if name == "resnet" else text(2)
    with FlopCounterMode(display=False) as forward:
        output = model(images) if name == "resnet" else model(**sample).loss
    with FlopCounterMode(display=False) as backward:
        output.sum().backward()
    found = work(model, sample)
    assert forward_of(found) == forward.get_total_flops()
    assert backward_of(found) == pytest.approx(backward.get_total_flops(), rel=0.02)


def test_two_ranks_of_tensor_parallel_share_products() -> None:
    model, flags = llama(), dict[str, Any](tensor_parallel=True)
    flags |= {"tensor_parallel_configs": {"plan": "transformer", "tensor_parallel_degree": 2}}
    whole = work(model, text(2))
    for rank in range(2):
        own = forward_of(work(model, text(2), flags, rank))
        assert own == pytest.approx(forward_of(whole) / 2, rel=1e-3)  # positions are whole


@pytest.mark.rare
def test_stages_of_a_pipeline_share_all_operators() -> None:
    model, flags = llama(), {"pipeline": True, "pipeline_configs": {"accumulate_steps": 2}}
    whole = work(model, text(2))
    stages = [work(model, text(4), flags, rank) for rank in range(2)]
    assert sum(map(forward_of, stages)) == forward_of(whole)
    assert min(map(forward_of, stages)) > 0.3 * forward_of(whole)


def test_what_is_replayed_runs_forward_twice() -> None:
    model = llama()
    blocks = {"recompute": True, "recompute_configs": {"checkpoints": ["model.layers.*"]}}
    plain, found = work(model, text(2)), work(model, text(2), blocks)
    twice = found.forwards == 2
    assert found.operations[twice].sum() > 0.7 * plain.operations.sum()
    assert (found.forwards == 1).any(), "the output layer runs once"


def test_amp_computes_products_in_sixteen_bits() -> None:
    flags = {"amp": True, "amp_configs": {"dtype": "bfloat16"}}
    found = work(llama(), text(2), flags)
    assert found.operations[found.bits == 16].sum() > 0.999 * found.operations.sum()


def test_frozen_layers_have_no_backward() -> None:
    model = torchvision.models.resnet18()
    model.requires_grad_(False)
    model.fc.requires_grad_(True)
    found = work(model, torch.randn(2, 3, 32, 32))
    counted = found.backwards[found.operations > 0]
    assert counted.tolist() == [0.0] * (len(counted) - 1) + [1.0]


def test_a_large_batch_follows_from_small_ones() -> None:
    model = llama()
    direct = Accounts(compose(strategy().request(), 1), Subject(model=model, sample=text(16)))
    small = Subject(model=model, sample=text(2))
    grown = Accounts(compose(strategy().request(), 1), small.with_samples(16))
    assert grown[0].activations == direct[0].activations
    mine, other = grown.share(0).work, direct.share(0).work
    assert mine is not None
    assert other is not None
    assert forward_of(mine) == forward_of(other)
    assert mine.moved.sum() == other.moved.sum()


def test_views_move_nothing_and_expanded_numbers_are_read_once() -> None:
    class Spread(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.t().expand(8, -1, -1) + functional.relu(x.t())

    found = work(Spread(), torch.ones(4, 2))
    sizes = [size for size in found.moved.tolist() if size]
    assert sizes == [2 * 4 * 8, 4 * 8 + 4 * 8 + 8 * 4 * 8]
