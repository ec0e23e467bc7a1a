"""Layers of models that nobody here wrote, cut over two ranks."""

from typing import Any

import pytest
import torch

import fleetx as fleet
from fleetx.testing import world
from tests.libraries import transformers


def llama(use_cache: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        use_cache=use_cache,
    )
    model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return model


def losses(model: Any, move: Any) -> list[float]:
    ids = torch.arange(16).view(2, 8)
    found = []
    for _ in range(2):
        loss = model(input_ids=ids, labels=ids).loss
        move(loss)
        found.append(float(loss.detach()))
    return found


@world(2)
def test_the_cache_of_a_model_that_is_trained_with_it() -> None:
    """It begins with an empty vector, to which keys of four dimensions are joined."""
    plain = llama(use_cache=True)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)

    def move(loss: torch.Tensor) -> None:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    expected = losses(plain, move)
    strategy = fleet.DistributedStrategy()
    strategy.tensor_parallel = True
    strategy.tensor_parallel_configs = {"tensor_parallel_degree": 2, "plan": "transformer"}
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(llama(use_cache=True))
    ours = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    assert losses(model, ours.minimize) == pytest.approx(expected, abs=1e-5)
