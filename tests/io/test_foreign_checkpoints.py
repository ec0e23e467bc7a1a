"""Checkpoints of a model that nobody here wrote."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fleetx as fleet
from fleetx import roles
from fleetx.io import checkpoint_weights, load_checkpoint, save_checkpoint
from fleetx.testing import world
from tests.libraries import transformers
from tests.strategies.pipeline import strangers


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


LAYOUTS: dict[str, dict[str, Any]] = {
    "dp": {},
    "z3": {"sharding": True, "sharding_configs": {"stage": 3, "segment_broadcast_MB": 0.01}},
    "tp": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"tensor_parallel_degree": 2, "plan": "transformer"},
    },
    "pp": {
        "pipeline": True,
        "pipeline_configs": {"accumulate_steps": 2},
        "hybrid_configs": {"pp_degree": 2},
    },
}


def laid_out(name: str, layout: str) -> tuple[Any, Any, Any]:
    """A stranger under a layout, its optimizer, and this worker's share of the batch."""
    strategy: Any = fleet.DistributedStrategy()
    for option, value in LAYOUTS[layout].items():
        setattr(strategy, option, value)
    roles.stop()  # models of an earlier job may still be there
    fleet.init(is_collective=True, strategy=strategy)
    inputs, targets = strangers.batch(name)
    rows = {key: value[:2] for key, value in inputs.items()}
    given = {"sample": rows} if layout == "pp" else {}
    model = fleet.distributed_model(strangers.built(name), criterion=strangers.loss, **given)
    optimizer = fleet.distributed_optimizer(
        torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    )
    place, shares = fleet.data_index(), fleet.data_num()
    mine = {key: value.chunk(shares)[place] for key, value in inputs.items()}
    return model, optimizer, (mine, targets.chunk(shares)[place])


def between_all(name: str, folder: Path) -> None:
    ends = {}
    for layout in LAYOUTS:
        model, optimizer, batch = laid_out(name, layout)
        for _ in range(2):
            model.train_batch(batch)
        save_checkpoint(folder / layout, model, optimizer, step=2)
        for _ in range(2):
            model.train_batch(batch)
        ends[layout] = fleet.full_state_dict(model, everywhere=True)
    for target in LAYOUTS:
        for source in LAYOUTS:
            model, optimizer, batch = laid_out(name, target)
            load_checkpoint(folder / source, model, optimizer)
            for _ in range(2):
                model.train_batch(batch)
            found = fleet.full_state_dict(model, everywhere=True)
            torch.testing.assert_close(found, ends[source], rtol=0, atol=2e-5)


@pytest.mark.rare
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_models_of_transformers_go_on_between_all_layouts(name: str, tmp_path: Path) -> None:
    world(2, timeout=900).run(between_all, name, tmp_path)
