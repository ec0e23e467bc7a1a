"""Low-rank adapters of peft, whose wrappers reach through each other to the model inside."""

from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world

KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"use_dora": True},  # reads the weights that it adapts
    "with a head": {"modules_to_save": ["lm_head"]},
}
TOKENS: dict[str, Any] = {"trainable_token_indices": {"embed_tokens": [1, 5, 20]}}
"""Rows of a table that are trained, which an adapter puts into the weight that it reads."""
BLOCKS = "base_model.model.model.layers.*"
FLAGS: dict[str, dict[str, Any]] = {
    "data_parallel": {},
    "sharding 2": {"sharding": True, "sharding_configs": {"stage": 2}},
    "sharding 3": {"sharding": True, "sharding_configs": {"stage": 3}},
    "recompute": {
        "sharding": True,
        "recompute": True,
        "recompute_configs": {"checkpoints": [BLOCKS]},
    },
    "tensor_parallel": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"tensor_parallel_degree": 2, "plan": "transformer"},
    },
}


def llama() -> Any:
    from tests.libraries import transformers  # here: it takes seconds, and only ranks need it

    size = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, **heads))


def adapted(kind: str) -> Any:
    whole = llama()
    import peft  # after it

    chosen = {"target_modules": ["q_proj", "v_proj", "down_proj"], "init_lora_weights": False}
    return peft.get_peft_model(whole, peft.LoraConfig(r=4, lora_alpha=8, **chosen, **KINDS[kind]))


def train(model: nn.Module, share: slice, optimizer: Any) -> None:
    torch.manual_seed(1)
    for _ in range(3):
        words = torch.randint(0, 32, (4, 8))[share]
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def trained(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, eps=1e-4)


def plain(kind: str) -> dict[str, Tensor]:
    model = adapted(kind)
    train(model, slice(None), trained(model))
    return dict(model.state_dict())


def distributed(kind: str, flags: dict[str, Any]) -> Any:
    roles.stop()
    strategy = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(adapted(kind))
    share = slice(None) if "tensor_parallel" in flags else slice(fleet.worker_index(), None, 2)
    train(model, share, fleet.distributed_optimizer(trained(model)))
    return model


def sizes(model: Any) -> list[list[int]]:
    """What this worker holds of layers that are adapted, and of those beside them."""
    block = model.base_model.model.model.layers[0]
    adapters = (block.self_attn.q_proj, block.self_attn.v_proj, block.mlp.down_proj)
    held = [each.base_layer for each in adapters] + [block.self_attn.k_proj, block.mlp.up_proj]
    return [list(layer.weight.to_local().shape) for layer in held]


@dataclass
class Found:
    """Of one worker."""

    states: dict[tuple[str, str], dict[str, Tensor]] = field(default_factory=dict)
    cut: list[list[int]] = field(default_factory=list)


def everything(folder: Path) -> Found:
    found = Found()
    for kind, flags in product(KINDS, FLAGS):
        model = distributed(kind, FLAGS[flags])
        state = found.states[kind, flags] = fleet.full_state_dict(model)
        if (kind, flags) == ("lora", "tensor_parallel"):
            found.cut = sizes(model)
        if (kind, flags) == ("lora", "sharding 3") and fleet.worker_index() == 0:
            model.save_pretrained(folder, state_dict=state)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[Found]:
    return world(2, timeout=240).run(everything, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_learn_what_a_plain_run_teaches_them(kind: str, found: list[Found]) -> None:
    wanted, begun = plain(kind), adapted(kind).state_dict()
    moved = {name for name, value in wanted.items() if not torch.equal(value, begun[name])}
    assert moved
    assert all("lora_" in name or "lm_head" in name for name in moved)
    for flags in FLAGS:
        state = found[0].states[kind, flags]
        torch.testing.assert_close(state, wanted, rtol=1e-5, atol=1e-5, msg=partial(named, flags))


def named(flags: str, told: str) -> str:
    return f"{flags}: {told}"


def test_a_plan_cuts_layers_that_are_adapted_with_those_beside_them(found: list[Found]) -> None:
    for each in found:
        assert each.cut == [[8, 16], [4, 16], [16, 12], [4, 16], [12, 16]]


@pytest.mark.usefixtures("found")
def test_adapters_of_a_sharded_run_are_saved_as_peft_loads_them(folder: Path) -> None:
    base = llama()
    import peft

    loaded = peft.PeftModel.from_pretrained(base, folder).state_dict()
    torch.testing.assert_close(dict(loaded), plain("lora"), rtol=1e-5, atol=1e-5)
