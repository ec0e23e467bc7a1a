"""Weights & Biases and MLflow themselves, without a service: what they keep is what was logged."""

import importlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world
from fleetx.tracking import MLflow, WandB


def train(trackers: list[Any]) -> None:
    fleet.init(is_collective=True, trackers=trackers, log_every=2)
    model = fleet.distributed_model(nn.Linear(2, 1))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for number in range(5):
        optimizer.minimize(model(torch.ones(2, 2)).mean())
        fleet.log({"number": number})
    fleet.log({"accuracy": 0.5}, step=1)  # by epochs, behind what was logged by updates
    roles.stop()


def on_wandb(folder: str) -> None:
    os.environ.update(WANDB_SILENT="true", WANDB_DIR=folder)
    train([WandB(project="tests", mode="offline")])


BLOCK, HEAD = 2**15, struct.Struct("<IHB")


def records(data: bytes) -> Iterator[bytes]:
    """What a file of a run holds, which is a log as LevelDB writes it."""
    at, whole = HEAD.size, b""  # behind the head of the file, which is as long as that of a record
    while at < len(data):
        if BLOCK - at % BLOCK < HEAD.size:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = HEAD.unpack_from(data, at)
        whole += data[at + HEAD.size : at + HEAD.size + length]
        at += HEAD.size + length
        if kind in {1, 4}:  # the record is complete, or its last piece
            yield whole
            whole = b""


def rows(folder: Path) -> list[dict[str, Any]]:
    """What a run that is offline keeps for its service."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (file,) = folder.rglob("*.wandb")
    found = []
    for data in records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append({i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items})
    return found


@pytest.mark.rare
def test_wandb_keeps_everything_also_steps_that_go_back(tmp_path: Path) -> None:
    world(2, timeout=120).run(on_wandb, str(tmp_path))
    found = rows(tmp_path)
    numbers = [(row["step"], row["number"]) for row in found if "number" in row]
    assert numbers == [(step, step - 1) for step in range(1, 6)]
    assert [row["step"] for row in found if "accuracy" in row] == [1]
    assert [row["step"] for row in found if "fleetx/step_seconds" in row] == [2, 4, 5]


ENDING = """
import sys
import torch
import wandb
import fleetx as fleet

own = wandb.init(project="tests", mode="offline") if sys.argv[1] == "own" else None
fleet.init(is_collective=True, trackers=["wandb"])
model = fleet.distributed_model(torch.nn.Linear(2, 1))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.minimize(model(torch.ones(2, 2)).mean())
fleet.log({"mine": 7})
if own is not None:
    from fleetx import roles

    roles.stop()
    own.log({"after": 1, "step": 4})  # the script's run goes on
else:
    raise KeyError("in the middle")
"""


@pytest.mark.rare
@pytest.mark.parametrize("how", ["raises", "own"])
def test_wandb_loses_nothing_at_the_end(how: str, tmp_path: Path) -> None:
    """Its run ends at exit, before the job does; what is left must come before that."""
    (tmp_path / "train.py").write_text(ENDING)
    done = subprocess.run(
        [sys.executable, "train.py", how],
        cwd=tmp_path,
        env=os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("KeyError" in done.stderr) is (how == "raises"), done.stderr
    found = rows(tmp_path)
    assert [row["step"] for row in found if "mine" in row] == [3]
    assert [row["step"] for row in found if "fleetx/step_seconds" in row] == [3]
    assert [row["step"] for row in found if "after" in row] == [4] * (how == "own")


def on_mlflow(folder: str, uri: str) -> None:
    os.chdir(folder)
    os.environ.update(MLFLOW_TRACKING_URI=uri, MLFLOW_ALLOW_FILE_STORE="true")
    train([MLflow(run_name="mine")])


@pytest.mark.rare
def test_mlflow_keeps_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()  # what mlflow-skinny can do
    world(2, timeout=120).run(on_mlflow, str(tmp_path), uri)
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs(["0"])
    assert run.info.run_name == "mine"
    assert run.info.status == "FINISHED"
    kept = client.get_metric_history(run.info.run_id, "number")
    assert [(point.step, point.value) for point in kept] == [(s, s - 1) for s in range(1, 6)]
    assert client.get_metric_history(run.info.run_id, "accuracy")[0].step == 1
    told = client.get_metric_history(run.info.run_id, "fleetx/step_seconds")
    assert [point.step for point in told] == [2, 4, 5]
