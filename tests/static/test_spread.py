"""Programs whose parameters are spread over workers: the weights of plain code come out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import static
from fleetx.plan.error import PlanError
from fleetx.testing import world

STEPS, BATCH = 3, 8
NAMES = [f"fc_{number}.{kind}" for number in range(4) for kind in ("weight", "bias")]


def batch(step: int, share: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 * step + share)
    return {"x": rng.standard_normal((BATCH, 8), dtype=np.float32), "y": rng.integers(0, 3, BATCH)}


def network(devices: int = 1) -> tuple[Tensor, Tensor]:
    """Four layers on so many devices; each returns a variable that can be named."""
    static.reset()
    x, y = static.data("x", [None, 8]), static.data("y", [None], "int64")
    h: Any = x
    for number in range(4):
        with static.device_guard(f"gpu:{number * devices // 4}" if devices > 1 else None):
            h = static.nn.fc(h, 16 if number < 3 else 3, activation="tanh" if number < 3 else None)
            h.name = f"layer_{number}"
    with static.device_guard(f"gpu:{devices - 1}" if devices > 1 else None):
        return F.cross_entropy(h, y), h


def by_hand(shares: int, cls: type[torch.optim.Optimizer], **options: Any) -> dict[str, Tensor]:
    """Plain torch in one process, on the batches of all workers together."""
    torch.manual_seed(2)
    layers = [nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))[:-1]
    optimizer = cls(model.parameters(), **options)
    for step in range(STEPS):
        feeds = [batch(step, share) for share in range(shares)]
        x, y = (torch.from_numpy(np.concatenate([f[name] for f in feeds])) for name in "xy")
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(zip(NAMES, (p.detach() for p in model.parameters()), strict=True))


def strategy(flags: dict[str, Any]) -> fleet.DistributedStrategy:
    made = fleet.DistributedStrategy()
    for name, options in flags.items():
        if name != "hybrid":
            setattr(made, name, True)
        if options:
            setattr(made, f"{name}_configs", options)
    return made


def built(
    flags: dict[str, Any], cls: type[torch.optim.Optimizer], **options: Any
) -> tuple[static.Executor, Tensor, Tensor]:
    loss, out = network(devices=2 if "pipeline" in flags else 1)
    fleet.init(is_collective=True)
    made = fleet.distributed_optimizer(static.Optimizer(cls, **options), strategy(flags))
    made.minimize(loss)
    exe = static.Executor()
    torch.manual_seed(2 + 3 * fleet.worker_index())  # worker 0 decides
    exe.run(fleet.startup_program)
    return exe, loss, out


def weights(program: static.Program) -> dict[str, Tensor]:
    program.parameters()
    return {name: p.detach().clone() for name, p in program.state.trained().items()}


def trained(
    flags: dict[str, Any], cls: type[torch.optim.Optimizer], **options: Any
) -> tuple[dict[str, Tensor], list[list[np.ndarray]]]:
    exe, loss, out = built(flags, cls, **options)
    found = []
    for step in range(STEPS):
        feed = batch(step, fleet.data_index())
        found.append(exe.run(fleet.main_program, feed, [loss, out, "layer_0"]))
    return weights(fleet.main_program), found


SGD: Any = (torch.optim.SGD, {"lr": 0.3, "momentum": 0.9})
ADAM: Any = (torch.optim.AdamW, {"lr": 0.01})
TWO = {"accumulate_steps": 2}
ANCHORS = {"segment_anchors": ["layer_0", "layer_2"]}
CASES: list[tuple[int, dict[str, Any], Any]] = [
    (2, {"pipeline": TWO}, SGD),
    (2, {"pipeline": {"accumulate_steps": 4, "schedule_mode": "F-then-B"}}, ADAM),
    (2, {"sharding": ANCHORS}, SGD),
    (2, {"sharding": {"segment_broadcast_MB": 0.001, "stage": 2}}, ADAM),
    (4, {"pipeline": TWO, "sharding": ANCHORS}, SGD),
    (4, {"pipeline": TWO}, ADAM),
]


def name(value: object) -> str:
    return "+".join(value) if isinstance(value, dict) else str(value) if value == 4 else ""


@pytest.mark.parametrize(("workers", "flags", "rule"), CASES, ids=name)
def test_spread_programs_train_like_plain_code(
    workers: int, flags: dict[str, Any], rule: Any
) -> None:
    cls, options = rule
    ranks = world(workers).run(trained, flags, cls, **options)
    shares = workers // 2 if "pipeline" in flags else workers
    expected = by_hand(shares, cls, **options)
    for found, _ in ranks:
        assert found.keys() == expected.keys()
        for key, value in found.items():
            assert torch.allclose(value, expected[key], rtol=0, atol=1e-6), key
