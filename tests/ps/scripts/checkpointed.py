"""A job with servers that saves a checkpoint, goes on, goes back to it, and goes on again.

python checkpointed.py first|again sync|async|geo FOLDER
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import fleetx as fleet
from fleetx.io import load_checkpoint, save_checkpoint
from fleetx.nn import SparseEmbedding

SAVED, END = 3, 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(8, name="words")
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.norm(self.words(ids).mean(1)))


class Counter:
    """A part of the script's own."""

    seen = 0

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.seen = state_dict["seen"]


class Job:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = fleet.distributed_model(Net())
        self.optimizer = fleet.distributed_optimizer(
            torch.optim.Adagrad(self.model.parameters(), lr=0.05)
        )
        self.counter = Counter()
        fleet.init_worker()

    def batch(self) -> tuple[Tensor, Tensor]:
        drawn = torch.Generator().manual_seed(10 * self.counter.seen + fleet.worker_index())
        ids = torch.randint(0, 50, (16, 3), generator=drawn)
        return ids, (ids.sum(1, keepdim=True) % 2).float()

    def loss(self) -> Tensor:
        ids, wanted = self.batch()
        return binary_cross_entropy_with_logits(self.model(ids), wanted)

    def train(self, last: int) -> None:
        while self.counter.seen < last:
            self.optimizer.minimize(self.loss())
            self.counter.seen += 1

    def holds(self) -> dict[str, Tensor]:
        """Rows, dense parameters and running statistics as a worker sees them."""
        self.model.eval()
        with torch.no_grad():
            found = {"outputs": self.model(torch.arange(50).view(-1, 1))}
        self.model.train()
        dense = {n: t for n, t in self.model.state_dict().items() if t.numel()}
        return {name: t.detach().clone() for name, t in {**found, **dense}.items()}

    def save(self, folder: Path) -> None:
        save_checkpoint(
            folder, self.model, self.optimizer, step=SAVED, parts={"counter": self.counter}
        )

    def load(self, folder: Path) -> None:
        found = load_checkpoint(folder, self.model, self.optimizer, parts={"counter": self.counter})
        assert found is not None
        assert (found["step"], self.counter.seen) == (SAVED, SAVED)


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def main(turn: str, mode: str, folder: Path) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = mode != "sync"
    if strategy.a_sync:
        strategy.a_sync_configs = {"k_steps": 2 if mode == "geo" else 0}
    fleet.init(strategy=strategy)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    job = Job()
    kept = [folder / f"{name}-{fleet.worker_index()}.safetensors" for name in ("saved", "ended")]
    if turn == "first":
        job.train(SAVED)
        job.save(folder)
        save_file(job.holds(), kept[0])
        fleet.barrier_worker()  # what one trains now, another one that still looks would see
        job.train(END)
        save_file(job.holds(), kept[1])
    job.load(folder)
    same(job.holds(), load_file(kept[0]))
    fleet.barrier_worker()
    if mode == "sync":  # elsewhere results depend on who comes first
        job.train(END)
        same(job.holds(), load_file(kept[1]))
    fleet.stop_worker()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
