"""A small model with tied weights under every layout, and a run of it that stops and goes on."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet
from fleetx.io import load_checkpoint, save_checkpoint

PIPELINE = {
    "pipeline": True,
    "pipeline_configs": {"split": ["blocks.1"], "accumulate_steps": 2},
}
TENSORS = {
    "tensor_parallel": True,
    "tensor_parallel_configs": {
        "tensor_parallel_degree": 2,
        "column": ["blocks.*.up"],
        "row": ["blocks.*.down"],
    },
}


def sharded(stage: int, degree: int) -> dict[str, Any]:
    configs = {"stage": stage, "sharding_degree": degree, "segment_anchors": ["blocks.*", "last"]}
    return {"sharding": True, "sharding_configs": configs}


LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "dp2": (2, {}),
    "dp4": (4, {}),
    "z1x2": (2, sharded(1, 2)),
    "z3x2": (2, sharded(3, 2)),
    "z3x4": (4, sharded(3, 4)),
    "pp2": (2, {**PIPELINE, "hybrid_configs": {"pp_degree": 2}}),
    "pp2dp2": (4, {**PIPELINE, "hybrid_configs": {"pp_degree": 2, "dp_degree": 2}}),
    "tp2": (2, TENSORS),
    "tp2z2": (4, {**TENSORS, **sharded(3, 2)}),
    "pp2z2tp2": (
        8,
        {**PIPELINE, **TENSORS, **sharded(3, 2), "hybrid_configs": {"pp_degree": 2}},
    ),
}
"""Name -> workers and strategy."""

MERGED = {
    "amp": True,
    # Double numbers stay what they are under autocast: the scale acts, and nothing is rounded.
    "amp_configs": {"dtype": "float16", "init_loss_scaling": 1024.0, "incr_every_n_steps": 1},
    "gradient_merge": True,
    "gradient_merge_configs": {"k_steps": 2},
}
"""Every second batch ends in an update, after which the scale of the loss grows."""

WORDS, WIDTH, BATCH = 12, 8, 8
SAVED, END = 5, 12
"""Batches before the checkpoint, inside an epoch and a group of batches, and in all."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Tied(nn.Module):
    """The table of words is the last layer, too.

    All is in double numbers, which layouts add up in other orders with the same result, but for the
    bias that ``last`` is worth: amp wants something to do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("scale", torch.ones(()))
        self.double()
        self.last.float()

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        x = x + self.last(torch.zeros_like(x, dtype=torch.float32)).double()
        return self.head(x) * self.scale


def criterion(scores: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), wanted.flatten())


class Run:
    """A model, its data and its schedule under one layout."""

    def __init__(self, layout: str, options: dict[str, Any] | None = None) -> None:
        strategy: Any = fleet.DistributedStrategy()
        for name, value in {**LAYOUTS[layout][1], **(options or {})}.items():
            setattr(strategy, name, value)
        fleet.init(is_collective=True, strategy=strategy)
        torch.manual_seed(0)
        net = Tied()
        self.model: Any = fleet.distributed_model(
            net, criterion=criterion, sample=torch.zeros(2, 3, dtype=torch.long)
        )
        self.optimizer = fleet.distributed_optimizer(
            torch.optim.Adam(self.model.parameters(), lr=0.02)
        )
        self.scheduler = LambdaLR(self.optimizer, lambda update: 0.9**update)
        words = torch.randint(0, WORDS, (36, 3), generator=torch.Generator().manual_seed(1))
        number = torch.arange(36)
        self.loader = fleet.distributed_loader(
            DataLoader(
                TensorDataset(words, words.roll(1, dims=1), number),
                BATCH // fleet.data_num(),
                shuffle=True,
                drop_last=True,
                generator=torch.Generator().manual_seed(2),
            )
        )
        self.parts: Any = {"loader": self.loader, "scheduler": self.scheduler}
        self.seen: list[list[int]] = []

    def train(self, batches: int, folder: Path | None = None) -> None:
        """Train; a checkpoint of the run is left in a folder on the way."""
        while batches:
            for words, wanted, number in self.loader:
                self.model.train_batch((words, wanted), self.optimizer, self.scheduler)
                self.seen.append(number.tolist())
                batches -= 1
                if folder is not None and len(self.seen) == SAVED:
                    self.save(folder)
                if not batches:
                    return

    def save(self, folder: Path) -> None:
        save_checkpoint(folder, self.model, self.optimizer, step=SAVED, parts=self.parts)

    def weights(self) -> Tensor:
        state = fleet.full_state_dict(self.model, everywhere=True)
        return torch.cat([value.flatten() for value in state.values()])


def straight(layout: str, folder: Path, options: dict[str, Any]) -> tuple[Tensor, Any]:
    """Train to the end, with a checkpoint on the way; weights, and which samples were seen."""
    run = Run(layout, options)
    run.train(END, folder / layout)
    return run.weights(), (fleet.data_index(), run.seen[SAVED:])


def moved(
    layout: str, sources: list[str], folder: Path, options: dict[str, Any]
) -> dict[str, tuple[Tensor, Any]]:
    """Go on from the checkpoints of other layouts, one after the other."""
    found = {}
    for source in sources:
        run = Run(layout, options)
        run.train(4)  # forgotten; DDP has arranged its buckets for good after an exchange
        run.seen = []
        load_checkpoint(folder / source, run.model, run.optimizer, parts=run.parts)
        run.train(END - SAVED)
        found[source] = (run.weights(), (fleet.data_index(), run.seen))
    return found
