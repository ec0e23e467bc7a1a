"""Samplers of torch.utils.data, dealt out by torch or by fleetx: the same global batches."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fleetx as fleet
from fleetx.testing import world
from tests.habits.both import BATCH, Here, same

SAMPLES = 4 * BATCH
Samples = TensorDataset
Loader = Callable[[Samples, int], DataLoader[Any]]


def samples() -> Samples:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (SAMPLES,), generator=generator))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


LOADERS: dict[str, Loader] = {
    "in order": DataLoader,
    "shuffled": lambda data, size: DataLoader(data, size, shuffle=True, generator=seeded()),
    "a part": lambda data, size: DataLoader(
        data, size, sampler=SubsetRandomSampler(range(0, SAMPLES, 2), seeded())
    ),
    "weighted": lambda data, size: DataLoader(
        data, size, sampler=WeightedRandomSampler([1.0] * SAMPLES, SAMPLES, generator=seeded())
    ),
    "in batches": lambda data, size: DataLoader(
        data,
        batch_sampler=BatchSampler(RandomSampler(data, generator=seeded()), size, drop_last=True),
    ),
}


def dealt_by_fleetx(kind: str, here: Here) -> nn.Module:
    size = BATCH // fleet.worker_num() if here.distributed else BATCH
    loader: Any = LOADERS[kind](samples(), size)
    return trained(here, fleet.distributed_loader(loader) if here.distributed else loader)


def dealt_by_torch(led: bool, here: Here) -> nn.Module:
    """With the sampler of DDP scripts, alone or inside of a distributed loader."""
    workers, place = (fleet.worker_num(), fleet.worker_index()) if here.distributed else (1, 0)
    data = samples()
    sampler: Any = DistributedSampler(data, num_replicas=workers, rank=place, seed=5)
    loader: Any = DataLoader(data, BATCH // workers, sampler=sampler)
    sampler.set_epoch(1)
    return trained(here, fleet.distributed_loader(loader) if led and here.distributed else loader)


def trained(here: Here, loader: Any) -> nn.Module:
    model = here.model(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)))
    optimizer = here.optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    batches = 0
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        batches += 1
    assert batches in (2, 4)
    return model


@pytest.mark.parametrize("workers", [1, 2])
def test_samplers_that_fleetx_deals_out(workers: int) -> None:
    for kind in LOADERS:
        world(workers).run(same, partial(dealt_by_fleetx, kind))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_sampler_of_ddp_scripts(workers: int) -> None:
    for led in (False, True):
        world(workers).run(same, partial(dealt_by_torch, led))
