"""Checkpoints of a model that nobody here wrote."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import fleetx as fleet
from fleetx.io import checkpoint_weights, load_checkpoint, save_checkpoint
from fleetx.testing import world
from tests.libraries import transformers


def begun(**flags: Any) -> Any:
    """GPT-2 of transformers, whose word table is tied."""
    strategy: Any = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, use_cache=False
    )
    model: Any = fleet.distributed_model(transformers.GPT2LMHeadModel(config))
    return model, fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.01))


def trained(model: Any, optimizer: Any) -> dict[str, torch.Tensor]:
    ids = torch.arange(16).view(2, 8)
    optimizer.minimize(model(input_ids=ids, labels=ids).loss)
    return fleet.full_state_dict(model, everywhere=True)


def goes_on(folder: Path) -> None:
    model, optimizer = begun()
    trained(model, optimizer)
    save_checkpoint(folder, model, optimizer, step=1)
    expected = trained(model, optimizer)
    load_checkpoint(folder, model, optimizer)
    torch.testing.assert_close(trained(model, optimizer), expected, rtol=0, atol=0)
    if fleet.is_first_worker():
        save_file({n: t.clone() for n, t in expected.items()}, folder / "later.safetensors")


def in_parts(folder: Path) -> None:
    model, optimizer = begun(sharding=True)
    load_checkpoint(folder, model, optimizer)
    expected = load_file(folder / "later.safetensors")
    torch.testing.assert_close(trained(model, optimizer), expected, rtol=1e-5, atol=1e-6)


def test_gpt2_goes_on_as_replicas_and_in_parts(tmp_path: Path) -> None:
    world(2, timeout=600).run(goes_on, tmp_path)
    world(2, timeout=600).run(in_parts, tmp_path)
    weights = checkpoint_weights(tmp_path)
    assert torch.equal(weights["lm_head.weight"], weights["transformer.wte.weight"])
