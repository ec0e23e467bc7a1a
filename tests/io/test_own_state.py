"""What each worker has for itself, on another number of workers: the mean of it, or a reason."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fleetx as fleet
from fleetx.io import load_checkpoint, save_checkpoint
from fleetx.testing import world
from tests.libraries import torchvision

LOCALSGD = {"localsgd": True, "localsgd_configs": {"k_steps": 8}}
DGC = {"dgc": True, "dgc_configs": {"rampup_begin_step": 0, "sparsity": [0.9]}}


def begun(flags: dict[str, Any]) -> tuple[Any, Any]:
    """A model of torchvision, without what normalises over a batch."""
    strategy: Any = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    net = torchvision.models.vision_transformer.VisionTransformer(
        image_size=8,
        patch_size=4,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        mlp_dim=1024,
        num_classes=4,
    )
    model = fleet.distributed_model(net)
    rule = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, fleet.distributed_optimizer(rule)


def train(model: Any, optimizer: Any, first: int, last: int) -> None:
    for step in range(first, last):
        drawn = torch.Generator().manual_seed(10 * step + fleet.worker_index())
        images = torch.randn(4, 3, 8, 8, generator=drawn)
        optimizer.minimize(torch.nn.functional.cross_entropy(model(images), torch.arange(4)))


def weights(model: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def saved(flags: dict[str, Any], folder: Path) -> dict[str, Tensor]:
    model, optimizer = begun(flags)
    train(model, optimizer, 0, 3)
    save_checkpoint(folder, model, optimizer, step=3)
    return weights(model)


def loaded(flags: dict[str, Any], folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """As the checkpoint is taken, and after two more batches."""
    model, optimizer = begun(flags)
    load_checkpoint(folder, model, optimizer)
    taken = weights(model)
    train(model, optimizer, 3, 5)
    return taken, weights(model)


@pytest.mark.rare
@pytest.mark.parametrize("workers", [1, 3])
def test_between_two_meetings_others_go_on_with_the_mean(workers: int, tmp_path: Path) -> None:
    first, second = world(2).run(saved, LOCALSGD, tmp_path)
    assert any(not torch.equal(first[name], second[name]) for name in first), "they drifted apart"
    for taken, _ in world(workers).run(loaded, LOCALSGD, tmp_path):
        for name, value in taken.items():
            torch.testing.assert_close(value, (first[name] + second[name]) / 2, rtol=0, atol=1e-7)


@pytest.mark.rare
def test_residuals_go_on_on_three_workers_and_are_refused_by_one(tmp_path: Path) -> None:
    first, second = world(2).run(saved, DGC, tmp_path)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    ends = world(3).run(loaded, DGC, tmp_path)
    for taken, end in ends:
        torch.testing.assert_close(taken, first, rtol=0, atol=0)
        torch.testing.assert_close(end, ends[0][1], rtol=0, atol=0)
    with pytest.raises(ValueError, match="dgc"):
        world(1).run(loaded, DGC, tmp_path)
