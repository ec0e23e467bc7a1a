"""A run that stops inside an epoch and goes on ends with the weights of one that did not stop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet
from fleetx.io import load_checkpoint, save_checkpoint
from fleetx.testing import world

STRATEGIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "lars_amp": {"lars": True, "amp": True},
    "sharding": {"sharding": True},
    "gradient_merge": {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 3}},
    "sharding_merge": {
        "sharding": True,
        "gradient_merge": True,
        "gradient_merge_configs": {"k_steps": 3},
    },
    # Saved between two meetings, where workers have weights of their own.
    "localsgd": {"localsgd": True, "localsgd_configs": {"k_steps": 4, "begin_step": 1}},
    "adaptive_localsgd": {
        "adaptive_localsgd": True,
        "adaptive_localsgd_configs": {"init_k_steps": 16, "begin_step": 2},
    },
}


class Drift(nn.Module):
    """Subtracts a mean of what it saw, which is each worker's own until workers exchange it."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean()
        return x - self.mean


class Job:
    """A small model with everything that a checkpoint keeps."""

    def __init__(self, options: dict[str, Any]) -> None:
        strategy = fleet.DistributedStrategy()
        for name, value in options.items():
            setattr(strategy, name, value)
        fleet.init(is_collective=True, strategy=strategy)
        torch.manual_seed(0)
        net = nn.Sequential(
            *(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)),
            *(Drift(), nn.Linear(8, 3)),
        )
        self.model: Any = fleet.distributed_model(net, criterion=nn.functional.cross_entropy)
        self.optimizer = fleet.distributed_optimizer(
            torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        )
        self.scheduler = LambdaLR(self.optimizer, lambda update: 1 / (update + 1))
        x = torch.randn(36, 6)
        torch.manual_seed(fleet.worker_index())  # dropout differs from worker to worker
        generator = torch.Generator().manual_seed(5)
        self.loader = fleet.distributed_loader(
            DataLoader(TensorDataset(x, x.argmax(1) % 3), 3, shuffle=True, generator=generator)
        )
        self.parts: Any = {"loader": self.loader, "scheduler": self.scheduler}

    def train(self, batches: int) -> None:
        while batches:
            for batch in self.loader:
                self.model.train_batch(batch, self.optimizer, self.scheduler)
                batches -= 1
                if not batches:
                    return

    def weights(self) -> dict[str, Any]:
        return fleet.full_state_dict(self.model, everywhere=True)


def straight(options: dict[str, Any]) -> dict[str, Any]:
    job = Job(options)
    job.train(15)
    return job.weights()


def stopped(options: dict[str, Any], folder: str) -> tuple[dict[str, Any], Any]:
    job = Job(options)
    assert load_checkpoint(folder, job.model, job.optimizer) is None, "there is none"
    job.train(4)
    save_checkpoint(folder, job.model, job.optimizer, step=4, parts=job.parts)
    job.train(3)  # lost
    again = Job(options)
    again.train(1)  # forgotten
    found = load_checkpoint(folder, again.model, again.optimizer, parts=again.parts)
    again.train(4)
    last = save_checkpoint(
        folder, again.model, again.optimizer, step=8, parts=again.parts, numbers={"a": 1, "b": "x"}
    )
    third = Job(options)
    numbers = load_checkpoint(last, third.model, third.optimizer, parts=third.parts)
    third.train(7)
    return third.weights(), (found, numbers)


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_goes_on_exactly(name: str, tmp_path: Path) -> None:
    expected = world(2).run(straight, STRATEGIES[name])
    found = world(2).run(stopped, STRATEGIES[name], str(tmp_path))
    for (weights, told), theirs in zip(found, expected, strict=True):
        assert told == ({"step": 4, "workers": 2}, {"step": 8, "workers": 2, "a": 1, "b": "x"})
        assert weights.keys() == theirs.keys()
        for key, value in weights.items():
            torch.testing.assert_close(value, theirs[key], rtol=0, atol=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-8"], "the old ones go"


@world(2)
def test_tensors_come_back_whatever_their_order_in_memory(tmp_path: Path) -> None:
    """Of models in ``channels_last``, and of orthogonal parametrizations."""
    fleet.init(is_collective=True)
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.Flatten(), parametrizations.orthogonal(nn.Linear(16, 16)))
    net: Any = nn.Sequential(*layers)
    net = net.to(memory_format=torch.channels_last)
    assert any(not tensor.is_contiguous() for tensor in net.state_dict().values())
    model = fleet.distributed_model(net)
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), 0.1))
    batch = torch.randn(2, 3, 4, 4)
    optimizer.minimize(model(batch).sum())
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    for wait in (True, False):
        save_checkpoint(tmp_path, model, optimizer, step=1, wait=wait)
        optimizer.minimize(model(batch).sum())
        load_checkpoint(tmp_path, model, optimizer)
        assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def cycled(folder: Path | None, how: str) -> dict[str, Any]:
    """Trains with numbers that move: by a schedule, which leads momentum too, or by hand."""

    def begun() -> tuple[Any, Any, dict[str, Any]]:
        fleet.init(is_collective=True)
        torch.manual_seed(0)
        model = fleet.distributed_model(nn.Linear(6, 3))
        groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias]}]
        groups[0]["weight_decay"] = 0.1
        optimizer = fleet.distributed_optimizer(torch.optim.AdamW(groups, 0.05, eps=0.1))
        parts = {} if how == "hand" else {"schedule": OneCycleLR(optimizer, 0.1, 20)}
        return model, optimizer, parts

    model, optimizer, parts = begun()
    for at in range(6):
        if at == 3 and folder is not None:
            save_checkpoint(folder, model, optimizer, step=at, parts=parts)
            model, optimizer, parts = begun()
            load_checkpoint(folder, model, optimizer, parts=parts)
        generator = torch.Generator().manual_seed(at)
        x = torch.randn(8, 6, generator=generator)[fleet.worker_index() :: 2]
        optimizer.minimize(model(x).square().mean())
        for group in optimizer.param_groups:
            if how == "hand":
                group["lr"] *= 0.7
                group["weight_decay"] += 0.1
        if how != "hand":
            parts["schedule"].step()
    return fleet.full_state_dict(model, everywhere=True)


@pytest.mark.parametrize("how", ["schedule", "hand"])
def test_numbers_that_a_run_has_moved_go_on(how: str, tmp_path: Path) -> None:
    expected, found = (world(2).run(cycled, folder, how)[0] for folder in (None, tmp_path))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
