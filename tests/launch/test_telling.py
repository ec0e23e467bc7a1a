"""What a launcher keeps of a job for whoever watches it."""

import json
from pathlib import Path
from typing import Any

from tests.launch.conftest import Launcher

TRAIN = """
import json, os, signal, time, torch, fleetx as fleet
attempt = int(os.environ["PADDLE_RESTART"])
fleet.init(is_collective=True)
model = fleet.distributed_model(torch.nn.Linear(8, 2))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))

def told():
    if not os.path.exists("log/watch.0.jsonl"):
        return False
    lines = [json.loads(line) for line in open("log/watch.0.jsonl") if line.endswith(chr(10))]
    ranks = [line["ranks"].values() for line in lines if line["kind"] == "ranks"
             and line["attempt"] == attempt]
    return any(all({"loss", "batch_size", "exchanging"} <= one.keys() for one in line)
               for line in ranks)

through = torch.zeros(1)
while not through:
    x = torch.randn(16, 8)
    optimizer.minimize(torch.nn.functional.mse_loss(model(x), x[:, :2]))
    through[0] = float(told())
    torch.distributed.all_reduce(through, torch.distributed.ReduceOp.MIN)
    time.sleep(0.01)
if attempt == 0 and fleet.worker_index() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if attempt == 0:
    time.sleep(300)
"""


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "watch.0.jsonl").read_text().splitlines()]


def of(told: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in told if line["kind"] == kind]


def test_a_job_that_dies_and_starts_again_is_kept_beside_its_logs(launcher: Launcher) -> None:
    script = launcher.script(TRAIN)
    outcome = launcher.run("--nproc_per_node", "2", "--max_restart", "1", script)
    assert outcome.code == 0, outcome.err
    told = lines(launcher.folder / "log")
    jobs = of(told, "job")
    assert [(job["attempt"], job["workers"], job["script"]) for job in jobs] == [
        (0, 2, "train.py"),
        (1, 2, "train.py"),
    ]
    assert of(told, "facts")[0]["plan"]["mesh"] == {"pp": 1, "dp": 2, "sharding": 1, "tp": 1}
    ranks = of(told, "ranks")
    died = [line["ranks"]["1"] for line in ranks if line["ranks"]["1"]["state"] == "failed"]
    assert [one["code"] for one in died] == [-9]
    last = ranks[-1]
    assert last["attempt"] == 1
    for rank in ("0", "1"):
        one = last["ranks"][rank]
        assert (one["state"], one["batch_size"], one["code"]) == ("ended", 16, 0)
        assert 0 < one["loss"] < 10
        assert one["memory"] > 1e7
        assert 0 <= one["exchanging"] <= 1
        assert one["batches"] == one["updates"] > 0
    assert any("rank 1 failed first" in line["text"] for line in of(told, "said"))
    assert of(told, "end")[-1]["code"] == 0
    assert told[-1]["kind"] == "end"


def test_an_earlier_run_moves_with_its_logs(launcher: Launcher) -> None:
    script = launcher.script("import sys; sys.exit(3)")
    assert launcher.run("--nproc_per_node", "1", script).code == 3
    first = lines(launcher.folder / "log")
    assert of(first, "end")[0]["code"] == 3
    assert launcher.run("--nproc_per_node", "1", script).code == 3
    assert lines(launcher.folder / "log" / "earlier-1") == first
    assert len(of(lines(launcher.folder / "log"), "job")) == 1
