"""The state of strategies survives into processes that are really new, bit for bit."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world

OPTIONS: dict[str, dict[str, Any]] = {
    "amp": {"init_loss_scaling": 1024.0, "incr_every_n_steps": 2},
    "gradient_merge": {"k_steps": 2},
    "localsgd": {"k_steps": 3},
    "adaptive_localsgd": {"init_k_steps": 3},
    "dgc": {"rampup_begin_step": 1, "sparsity": [0.9]},
}


def train(folder: Path, first: int, last: int, flags: list[str]) -> int:
    """Train from one batch to another, with the state on disk; returns the process."""
    strategy = fleet.DistributedStrategy()
    for flag in flags:
        setattr(strategy, flag, True)
        if flag in OPTIONS:
            setattr(strategy, f"{flag}_configs", OPTIONS[flag])
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 128), nn.Linear(128, 3))
    fleet.distributed_model(model)
    rule = torch.optim.Adam if "lamb" in flags else torch.optim.SGD
    options: dict[str, Any] = {} if "lamb" in flags else {"momentum": 0.9}
    optimizer = fleet.distributed_optimizer(rule(model.parameters(), lr=0.01, **options))
    path = folder / f"rank{fleet.worker_index()}.pt"
    if first:
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for batch in range(first, last):
        random = torch.Generator().manual_seed(2 * batch + fleet.worker_index())
        inputs = torch.randn(16, 8, generator=random)
        targets = torch.randint(0, 3, (16,), generator=random)
        optimizer.minimize(F.cross_entropy(model(inputs), targets))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.destroy_process_group()  # ranks without a group are ended, and not used again
    return os.getpid()


@pytest.mark.parametrize(
    "flags",
    [
        ["amp", "gradient_merge", "dgc"],
        ["amp", "adaptive_localsgd", "lars"],
        ["localsgd", "gradient_merge", "lamb"],
    ],
    ids="+".join,
)
def test_a_run_in_two_processes_is_the_run_in_one(flags: list[str], tmp_path: Path) -> None:
    processes: list[int] = []
    for kind, first, last in (("whole", 0, 11), ("parts", 0, 5), ("parts", 5, 11)):
        (tmp_path / kind).mkdir(exist_ok=True)
        processes += world(2).run(train, tmp_path / kind, first, last, flags)
    assert len(set(processes)) == 6, "every part had processes of its own"
    for rank in range(2):
        whole, parts = (
            torch.load(tmp_path / kind / f"rank{rank}.pt", weights_only=True)
            for kind in ("whole", "parts")
        )
        assert parts["optimizer"].pop("layout") == whole["optimizer"].pop("layout")
        torch.testing.assert_close(parts, whole, rtol=0, atol=0)
        assert parts["optimizer"]["strategies"], "there is state to lose"
