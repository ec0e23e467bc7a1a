"""Metrics go on where a checkpoint was written, on as many workers as there are then."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx import roles
from fleetx.io import load_checkpoint, save_checkpoint
from fleetx.metrics import AUC, MAE, MSE, RMSE, Accuracy
from fleetx.testing import world
from tests.metrics.test_metrics import numbers, scored

ROWS, SAVED = 48, 24
MADE: dict[str, Any] = {
    "accuracy": lambda: Accuracy(topk=2),
    "auc": AUC,
    "coarse auc": lambda: AUC(limit=10),
    "mae": MAE,
    "mse": MSE,
    "rmse": RMSE,
}


def update(metric: Any, rows: slice) -> None:
    scores, labels = scored(ROWS)
    if isinstance(metric, Accuracy):
        metric.update(scores[rows], labels[rows])
    elif isinstance(metric, AUC):
        metric.update(scores[rows, 0].sigmoid(), (labels[rows] == 0).float())
    else:
        metric.update(*(each[rows] for each in numbers(ROWS)))


def straight(name: str) -> float:
    metric = MADE[name]()
    for rows in (slice(SAVED), slice(SAVED, ROWS)):
        update(metric, rows)
    return float(metric.local())


@pytest.mark.parametrize("name", MADE)
def test_another_metric_goes_on_with_the_state(name: str) -> None:
    metric, heir, empty = MADE[name](), MADE[name](), MADE[name]()
    empty.load_state_dict(MADE[name]().state_dict())
    update(metric, slice(SAVED))
    update(heir, slice(ROWS))  # forgotten
    state = copy.deepcopy(metric.state_dict())
    update(metric, slice(ROWS))  # lost
    for each in (heir, empty):
        each.load_state_dict(state)
        update(each, slice(SAVED, ROWS))
        assert each.local() == straight(name)


@pytest.mark.parametrize("name", MADE)
def test_states_of_several_workers_add_up(name: str) -> None:
    workers = [MADE[name]() for _ in range(3)]
    for at, metric in enumerate(workers):
        update(metric, slice(at, None, 3))
    heir = MADE[name]()
    heir.load_state_dicts([metric.state_dict() for metric in workers])
    if name != "coarse auc":  # what is told apart there depends on who saw what
        assert heir.local() == pytest.approx(straight(name), rel=1e-12)
    heir.load_state_dicts([])
    update(heir, slice(ROWS))
    assert heir.local() == pytest.approx(straight(name), rel=1e-12)


def test_the_state_of_another_metric_is_refused() -> None:
    metric = Accuracy(topk=5)
    with pytest.raises(ValueError, match=r"that of Accuracy\(topk=1, .*this is Accuracy\(topk=5"):
        metric.load_state_dict(Accuracy().state_dict())
    with pytest.raises(ValueError, match=r"that of MSE, and this is MAE, which counts something"):
        MAE().load_state_dict(MSE().state_dict())
    with pytest.raises(ValueError, match=r"AUC\.load_state_dict\(\) was given .* is of no metric"):
        AUC().load_state_dict({})
    state: Any = 3
    with pytest.raises(TypeError, match=r"AUC\.load_state_dict\(\) takes as state a dict that"):
        AUC().load_state_dict(state)


class Job:
    """A model and its metrics, of which each worker counts its rows."""

    def __init__(self) -> None:
        roles.stop()
        fleet.init(is_collective=True)
        self.model: Any = fleet.distributed_model(nn.Linear(2, 2), criterion=nn.MSELoss())
        self.optimizer = fleet.distributed_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.1)
        )
        self.parts = {name: make() for name, make in MADE.items() if name != "coarse auc"}

    def count(self, start: int, stop: int) -> None:
        for metric in self.parts.values():
            update(metric, slice(start + fleet.worker_index(), stop, fleet.worker_num()))

    def found(self) -> dict[str, float]:
        return {name: metric.compute() for name, metric in self.parts.items()}


def saved(folder: Path) -> dict[str, float]:
    job = Job()
    job.count(0, SAVED)
    save_checkpoint(folder, job.model, job.optimizer, step=1, parts=job.parts)
    job.count(SAVED, ROWS)
    return job.found()


def went_on(folder: Path) -> dict[str, float]:
    job = Job()
    load_checkpoint(folder, job.model, job.optimizer, parts=job.parts)
    job.count(SAVED, ROWS)
    return job.found()


def test_checkpoints_keep_what_was_counted_for_any_number_of_workers(tmp_path: Path) -> None:
    expected = world(2).run(saved, tmp_path)[0]
    assert expected == pytest.approx({name: straight(name) for name in expected}, rel=1e-12)
    for workers in (1, 2, 3):
        for found in world(workers).run(went_on, tmp_path):
            assert found == pytest.approx(expected, rel=1e-12)
