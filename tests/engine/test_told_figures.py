"""What a training tells of itself, and that it does not look at every batch."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fleetx as fleet
from fleetx.api import told_figures
from fleetx.roles import figures
from fleetx.testing import world


def train(batches: int, **settings: Any) -> list[float]:
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    model = fleet.distributed_model(torch.nn.Linear(8, 2), criterion=F.mse_loss)
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.randn(12, 8)
    return [float(model.train_batch((x, x[:, :2]))) for _ in range(batches)]


@world(2)
def test_loss_batch_and_plan_are_told() -> None:
    losses = train(1, gradient_merge=True)
    told = figures.now()
    assert told["loss"] == pytest.approx(losses[0])
    assert told["batch_size"] == 12
    plan = figures.facts()["plan"]
    assert plan["mesh"]["dp"] == 2
    assert "gradient_merge" in [each["name"] for each in plan["strategies"]]
    assert plan["words"].startswith("Plan for 2 workers")


@world(1)
def test_a_loss_is_fetched_now_and_then_and_not_in_every_batch() -> None:
    interval = told_figures.INTERVAL
    told_figures.INTERVAL = 1e9
    try:
        losses = train(5)
    finally:
        told_figures.INTERVAL = interval
    assert len(set(losses)) == 5
    assert figures.now()["loss"] == pytest.approx(losses[0])


ON_A_CARD = """
import torch, fleetx as fleet
from fleetx.api import told_figures
from fleetx.roles import figures
told_figures.INTERVAL = 0.0
fleet.init(is_collective=True)
model = fleet.distributed_model(torch.nn.Linear(8, 2), criterion=torch.nn.functional.mse_loss)
fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
batch = torch.ones(4, 8), torch.zeros(4, 2)
first = model.train_batch(batch).item()  # which waits for the card
model.train_batch(batch)
told = figures.now()
assert abs(told["loss"] - first) < 1e-6, (told, first)
assert 0 < told["memory"] <= told["memory_peak"] < told["memory_total"], told
print("through")
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_loss_of_a_card_is_told_when_it_has_arrived(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ON_A_CARD)
    paths = {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, env=os.environ | paths, capture_output=True, text=True, check=False
    )
    assert "through" in done.stdout, done.stdout + done.stderr


@world(1)
def test_a_new_job_begins_without_figures() -> None:
    figures.put(loss=1.0)
    fleet.init(is_collective=True)
    assert figures.now() == {}
    assert figures.facts() == {}


def test_a_source_that_fails_has_nothing() -> None:
    figures.forget()
    figures.source("good", lambda: {"a": 1})
    figures.source("bad", lambda: {"b": 1 // 0})
    figures.ask()
    assert figures.now() == {"a": 1}
    figures.forget()
