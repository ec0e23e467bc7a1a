"""How long training stands still for a checkpoint, and how long it takes until that is whole.

Two workers train replicas, or ZeRO-3 shards, of a model with Adam. In each round, one after
another: ``save_checkpoint`` with ``wait=False`` and ``True``, ``torch.save`` by the first worker
while the other waits, and torch's ``async_save`` of its distributed checkpoint. Beside them stands
the time of a plain copy of the same bytes, which no asynchronous save can undercut.

python benchmarks/checkpoint.py
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save

import fleetx as fleet
from fleetx.io import finish_checkpoints, save_checkpoint
from fleetx.testing import world

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)

Timing = tuple[float, float]
"""Seconds until training may go on, and until the checkpoint is whole."""


class Bench:
    """A model with its optimizer's state, and the ways to save both."""

    def __init__(self, layout: str, width: int, folder: Path) -> None:
        strategy = fleet.DistributedStrategy()
        strategy.sharding = layout == "ZeRO-3"
        if strategy.sharding:
            strategy.sharding_configs = {"stage": 3, "segment_broadcast_MB": 16.0}
        fleet.init(is_collective=True, strategy=strategy)
        layers = [nn.Linear(width, width) for _ in range(6)]
        self.model: Any = fleet.distributed_model(nn.Sequential(*layers))
        self.optimizer = fleet.distributed_optimizer(torch.optim.Adam(self.model.parameters()))
        self.optimizer.minimize(self.model(torch.randn(4, width)).square().mean())
        self._folder, self._step = folder, 0
        self._group = dist.new_group(backend="gloo")

    def held(self) -> list[Tensor]:
        """What this worker has of it."""
        state = [value for kept in self.optimizer.state.values() for value in kept.values()]
        found = [t.detach() for t in [*self.model.parameters(), *state] if isinstance(t, Tensor)]
        return [t.to_local() if hasattr(t, "to_local") else t for t in found]

    def background(self) -> Timing:
        """``save_checkpoint(wait=False)``."""
        return self._ours(wait=False)

    def waiting(self) -> Timing:
        """``save_checkpoint()``."""
        return self._ours(wait=True)

    def _ours(self, *, wait: bool) -> Timing:
        self._step += 1
        began = time.perf_counter()
        save_checkpoint(
            self._folder / "ours", self.model, self.optimizer, step=self._step, wait=wait
        )
        paused = time.perf_counter() - began
        finish_checkpoints()
        return paused, time.perf_counter() - began

    def by_one(self) -> Timing:
        """``torch.save`` of whole tensors by the first worker."""
        began = time.perf_counter()
        state = get_state_dict(self.model, self.optimizer, options=WHOLE)
        if fleet.is_first_worker():
            torch.save(state, self._folder / "one.pt")
        dist.barrier()
        taken = time.perf_counter() - began
        return taken, taken

    def by_torch(self) -> Timing:
        """``async_save`` of torch's distributed checkpoint."""
        self._step += 1
        began = time.perf_counter()
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        target = self._folder / f"torch-{self._step}"
        written: Any = async_save(state, checkpoint_id=target, process_group=self._group)
        paused = time.perf_counter() - began
        written.result()
        taken = time.perf_counter() - began
        dist.barrier()
        if fleet.is_first_worker():
            shutil.rmtree(target)
        return paused, taken

    def copy(self) -> Timing:
        """A copy of the same bytes, into memory that is there."""
        held = self.held()
        room = [torch.empty_like(t) for t in held]
        for target, source in zip(room, held, strict=True):
            target.copy_(source)
        began = time.perf_counter()
        for target, source in zip(room, held, strict=True):
            target.copy_(source)
        taken = time.perf_counter() - began
        return taken, taken


WAYS: dict[str, Callable[[Bench], Timing]] = {
    "save_checkpoint(wait=False)": Bench.background,
    "save_checkpoint()": Bench.waiting,
    "torch.save by one worker": Bench.by_one,
    "torch's async_save": Bench.by_torch,
    "a copy of a worker's bytes": Bench.copy,
}


def measured(
    layout: str, width: int, rounds: int, folder: Path
) -> tuple[int, dict[str, list[Timing]]]:
    """On each worker: bytes that it holds, and the times of each way in each round."""
    bench = Bench(layout, width, folder)
    found: dict[str, list[Timing]] = {name: [] for name in WAYS}
    for number in range(rounds + 1):
        for name, way in WAYS.items():
            dist.barrier()
            timing = way(bench)
            if number:  # the first round makes memory and groups
                found[name].append(timing)
    return sum(t.numel() * t.element_size() for t in bench.held()), found


def main() -> None:
    """Measure both layouts and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024, help="of six square layers")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for layout in ("replicas", "ZeRO-3"):
        with tempfile.TemporaryDirectory() as folder:
            ranks = world(2, timeout=600).run(
                measured, layout, given.width, given.rounds, Path(folder)
            )
        print(f"{layout}, {ranks[0][0] / 2**20:.0f} MiB on each of two workers")
        for name in WAYS:
            slowest = [
                tuple(map(max, *pair)) for pair in zip(*(r[1][name] for r in ranks), strict=True)
            ]
            paused, taken = (statistics.median(times) for times in zip(*slowest, strict=True))
            print(f"  {name:29}{paused * 1e3:8.0f} ms still {taken * 1e3:8.0f} ms until whole")


if __name__ == "__main__":
    main()
