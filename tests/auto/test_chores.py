"""What the host does besides: divided among chores, and measured by two workers."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import fleetx as fleet
from fleetx import roles
from fleetx.api import chores
from fleetx.api.chores import shared_out, with_chores
from fleetx.auto.computing import BATCH, SPREAD_UPDATE
from fleetx.testing import world
from tests.auto.test_search import cluster

Rows = list[tuple[Mapping[str, float], float, float]]


def test_what_is_missing_is_divided_by_how_often_each_chore_is_done() -> None:
    rows: Rows = [
        ({"unit": units, "batch": batches}, 3e-3 * units + 1e-3 * batches, 1.0)
        for units, batches in ((1, 1), (8, 1), (4, 4))
    ]
    assert shared_out(rows) == pytest.approx({"unit": 3000, "batch": 1000})


def test_no_chore_gives_time_back() -> None:
    rows: Rows = [({"unit": 1, "batch": 1}, 1e-3, 1.0), ({"unit": 4, "batch": 1}, -2e-3, 1.0)]
    found = shared_out(rows)
    assert min(found.values()) == 0


def test_a_worker_alone_has_nobody_to_do_chores_for() -> None:
    on = cluster(devices_per_node=1)
    assert with_chores(on) == on


def few(workers: int) -> Iterator[Any]:
    """A plan for each strategy, of a model that is small even among tiny ones."""
    yield chores._Case(2, {})
    yield chores._Case(2, chores._axis("sharding", workers, {"stage": 2}))
    yield chores._Case(2, chores._axis("tensor_parallel", workers, {"plan": "transformer"}))
    yield chores._Case(2, chores._axis("pipeline", workers, {"accumulate_steps": 2}), 2)


def measured() -> tuple[dict[str, float], int, bool]:
    before, chores._cases = chores._cases, few
    torch.manual_seed(3)
    drawn = torch.initial_seed()
    fleet.init(is_collective=True)
    logging.disable(logging.INFO)
    try:
        found = with_chores(cluster(devices_per_node=2))
    finally:
        logging.disable(logging.NOTSET)
        chores._cases = before
    same = torch.initial_seed() == drawn
    return dict(found.device.chores), roles.worker_num(), same


@pytest.mark.rare
def test_two_workers_find_out_what_each_strategy_makes_them_do() -> None:
    for found, workers, same in world(2).run(measured):
        assert workers == 2
        assert same, "random numbers of the script are as before"
        names = {BATCH, SPREAD_UPDATE, "sharding unit", "tensor parallel operator"}
        assert names | {"pipeline micro batch", "data parallel parameter"} <= found.keys()
        assert min(found.values()) >= 0


@pytest.mark.parametrize("workers", [2, 3, 4, 6, 8, 1024])
def test_all_plans_are_legal_and_fill_their_stages(workers: int) -> None:
    ranks = set()
    for case in chores._cases(workers):
        plan = case.plan(workers)
        assert len(plan.mesh) == 4
        assert chores.SAMPLES % (count := _micro_batches(case)) == 0
        assert count == 1 or plan.mesh["pp"] <= count
        ranks.add(max(plan.mesh[axis] for axis in ("pp", "sharding", "tp")))
    assert max(ranks) <= chores.MANY


def _micro_batches(case: chores._Case) -> int:
    return int(case.flags.get("pipeline_configs", {}).get("accumulate_steps", 1))


def test_workers_that_cannot_be_dealt_out_have_plain_plans() -> None:
    assert {case.plan(7).mesh["dp"] for case in chores._cases(7)} == {7}
