"""Programs save and load checkpoints as models do: any layout goes on from any other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fleetx as fleet
from fleetx import static
from fleetx.io import checkpoint_weights, load_checkpoint, save_checkpoint
from fleetx.io.agreement import CheckpointError
from fleetx.testing import world
from tests.io.programs import started
from tests.libraries import timm

SAVED, END, SHARE = 3, 6, 4
"""Batches before the checkpoint, inside a group of two, and in all; samples of a worker of two."""
MERGED = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp": {},
    "sharding": {
        "sharding": True,
        "sharding_configs": {"stage": 3, "segment_broadcast_MB": 0.001},
    },
    "pipeline": {"pipeline": True, "pipeline_configs": {"accumulate_steps": 2}},
    "tensor_parallel": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {
            "tensor_parallel_degree": 2,
            "column": ["fc_0"],
            "row": ["fc_1"],
        },
    },
}


def scores(layout: str) -> tuple[Tensor, Tensor]:
    x, y = static.data("x", [None, 8]), static.data("y", [None], "int64")
    h: Any = x
    for number in range(3):
        with static.device_guard(f"gpu:{number // 2}" if layout == "pipeline" else None):
            h = static.nn.fc(h, 16 if number < 2 else 3, activation="tanh" if number < 2 else None)
            h.name = f"layer_{number}"
    with static.device_guard("gpu:1" if layout == "pipeline" else None):
        return F.cross_entropy(h, y), x


def classes_of_timm(layout: str) -> tuple[Tensor, Tensor]:
    x, y = static.data("x", [None, 3, 8, 8]), static.data("y", [None], "int64")
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=8,
        patch_size=4,
        embed_dim=16,
        depth=1,
        num_heads=2,
        num_classes=3,
    )
    return F.cross_entropy(model(x), y), x


class Run:
    """A program under one layout, and its data."""

    def __init__(self, network: Callable[[str], tuple[Tensor, Tensor]], layout: str) -> None:
        strategy: Any = fleet.DistributedStrategy()
        for name, value in {**LAYOUTS[layout], **MERGED}.items():
            setattr(strategy, name, value)
        fleet.init(is_collective=True, strategy=strategy)
        static.reset()
        torch.manual_seed(0)
        self.loss, x = network(layout)
        self._shape = [int(size) for size in x.shape[1:]]
        rate = static.lr.piecewise_decay([1, 4], [0.05, 0.02, 0.01])
        # The keys' bias has no gradient but rounding, of which a smaller eps makes a direction.
        optimizer = static.Optimizer(torch.optim.Adam, lr=rate, eps=1e-4)
        fleet.distributed_optimizer(optimizer).minimize(self.loss)
        self.exe = started()
        self.program = static.default_main_program()

    def train(self, first: int, last: int) -> None:
        """Workers that share no data see all of it."""
        shares = [fleet.data_index()] if fleet.data_num() == 2 else [0, 1]
        for step in range(first, last):
            drawn = [np.random.default_rng(10 * step + share) for share in shares]
            x = [rng.standard_normal((SHARE, *self._shape), dtype=np.float32) for rng in drawn]
            y = [rng.integers(0, 3, SHARE) for rng in drawn]
            feed = {"x": np.concatenate(x), "y": np.concatenate(y)}
            self.exe.run(self.program, feed, [self.loss])

    def weights(self) -> dict[str, Tensor]:
        self.program.parameters()
        return {name: p.detach().clone() for name, p in self.program.state.trained().items()}


def goes_on(network: Callable[[str], tuple[Tensor, Tensor]], layouts: list[str], at: Path) -> None:
    """A run of each layout stops, and goes on under all of them."""
    ends = {}
    for layout in layouts:
        run = Run(network, layout)
        start = run.weights()
        run.train(0, SAVED)
        save_checkpoint(at / layout, run.program, run.exe, step=SAVED, wait=False)
        run.train(SAVED, END)
        ends[layout] = run.weights()
    for target in layouts:
        for source in layouts:
            run = Run(network, target)
            found = load_checkpoint(at / source, run.program, run.exe)
            assert found == {"step": SAVED, "workers": 2}
            run.train(SAVED, END)
            _compare(run.weights(), ends[source], start, exactly=source == target)


def _compare(
    found: dict[str, Tensor], expected: dict[str, Tensor], start: dict[str, Tensor], exactly: bool
) -> None:
    for name, value in expected.items():
        moved = float((value - start[name]).abs().max())
        limit = 0.0 if exactly else 2e-5 * max(moved, 1e-2)
        assert float((found[name] - value).abs().max()) <= limit, name


def test_programs_go_on_under_other_layouts(tmp_path: Path) -> None:
    world(2, timeout=600).run(goes_on, scores, ["sharding", "pipeline"], tmp_path)
    weights = checkpoint_weights(tmp_path / "pipeline")
    assert weights.keys() == {f"fc_{n}.{kind}" for n in range(3) for kind in ("weight", "bias")}


@pytest.mark.rare
def test_programs_go_on_under_every_layout(tmp_path: Path) -> None:
    world(2, timeout=600).run(goes_on, scores, list(LAYOUTS), tmp_path)
    world(2, timeout=600).run(goes_on, classes_of_timm, ["dp", "sharding"], tmp_path / "timm")


def test_what_is_no_training_is_refused(tmp_path: Path) -> None:
    fleet.init(is_collective=True)
    static.reset()
    x = static.data("x", [None, 4])
    out = static.nn.fc(x, 2)
    exe = started()
    with pytest.raises(CheckpointError, match="without an optimizer"):
        save_checkpoint(tmp_path, static.default_main_program(), exe, step=1)
    with pytest.raises(TypeError, match="a program with its executor; got a Linear"):
        save_checkpoint(tmp_path, torch.nn.Linear(1, 1), exe, step=1)
    assert list(out.shape[1:]) == [2]
