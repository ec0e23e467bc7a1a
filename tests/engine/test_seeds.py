"""``fleet.seed``: torch, numpy and random; the same on all workers, or another for each."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet
from fleetx.testing import world

Drawn = tuple[float, float, float]


def draw() -> Drawn:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def drawn(number: int, per_worker: bool) -> list[Drawn]:
    fleet.init(is_collective=True)
    found = []
    for _ in range(2):
        fleet.seed(number, per_worker=per_worker)
        found.append(draw())
    return found


def test_all_workers_draw_the_same() -> None:
    first, second = world(2).run(drawn, 7, False)
    assert first == second
    assert first[0] == first[1]
    assert first != world(2).run(drawn, 8, False)[0]


def test_each_worker_draws_its_own_and_the_same_again() -> None:
    first, second = world(2).run(drawn, 7, True)
    assert first[0] == first[1]
    assert not set(first[0]) & set(second[0])
    # Not that of worker 0 in a run with the next seed.
    assert not set(second[0]) & set(world(2).run(drawn, 8, True)[0][0])


def test_it_needs_no_job() -> None:
    fleet.seed(3)
    before = draw()
    fleet.seed(3)
    assert draw() == before
    with pytest.raises(ValueError, match="from 0"):
        fleet.seed(-1)


def stage_seeds() -> tuple[int, float]:
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.hybrid_configs = {"pp_degree": 2}
    fleet.init(is_collective=True, strategy=strategy)
    fleet.seed(7, per_worker=True)
    return fleet.data_index(), draw()[0]


def test_stages_of_one_pipeline_draw_the_same() -> None:
    first, second = world(2).run(stage_seeds)
    assert first == second


def shares() -> list[int]:
    fleet.init(is_collective=True)
    fleet.seed(1, per_worker=True)
    loader = DataLoader(TensorDataset(torch.arange(32)), batch_size=4, shuffle=True)
    return [int(i) for (batch,) in fleet.distributed_loader(loader) for i in batch]


def test_the_data_is_dealt_out_once_all_the_same() -> None:
    first, second = world(2).run(shares)
    assert sorted(first + second) == list(range(32))
