"""Workers that a script starts itself, as torch's tutorial "Getting started with DDP" does."""

import subprocess
import sys
from pathlib import Path

from fleetx.testing.limits import stretched
from tests.launch.conftest import heed_signals
from tests.ports import free_ports

SCRIPT = """
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.optim as optim

import fleetx as fleet


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = sys.argv[1]
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def demo_checkpoint(rank, world_size):
    setup(rank, world_size)
    strategy = fleet.DistributedStrategy()
    strategy.sharding = sys.argv[2] == "sharding"
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(rank)
    model = fleet.distributed_model(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)))
    optimizer = fleet.distributed_optimizer(optim.SGD(model.parameters(), lr=0.1))
    path = os.path.join(sys.argv[4], "model.checkpoint")
    state = fleet.full_state_dict(model)
    if rank == 0:
        torch.save(state, path)
    dist.barrier()
    fleet.load_full_state_dict(model, torch.load(path, map_location="cpu", weights_only=True))
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
        optimizer.step()
        if rank == 1 and sys.argv[3] == "fails":
            raise ValueError("rank 1 has had enough")
    total = sum(float(value.sum()) for value in fleet.full_state_dict(model).values())
    print(f"rank {rank} learned {total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(demo_checkpoint, args=(2,), nprocs=2, join=True)
"""


def run(folder: Path, flag: str, end: str) -> subprocess.CompletedProcess[str]:
    script = folder / "ddp_tutorial.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(free_ports(1)[0]), flag, end, str(folder)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=stretched(240),
        preexec_fn=heed_signals,
    )


def test_workers_that_a_script_spawns_train(tmp_path: Path) -> None:
    done = run(tmp_path, "sharding", "ends")
    assert done.returncode == 0, done.stderr
    assert "rank 0 learned" in done.stdout
    assert "rank 1 learned" in done.stdout


def test_a_spawned_worker_that_fails_ends_the_script(tmp_path: Path) -> None:
    done = run(tmp_path, "plain", "fails")
    assert done.returncode != 0
    assert "rank 1 has had enough" in done.stderr
