"""A synchronous job with servers whose loop a manager saves: a model, or a program.

python managed.py [asynchronous] model|program FOLDER none|kill|leave

After some updates nothing happens, or worker 1 is killed, or the launcher is told to stop; what
the job ends with must not depend on it.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import fleetx as fleet
from fleetx import static
from fleetx.nn import SparseEmbedding
from fleetx.roles.leaving import is_restart, notice

MIDDLE, END = 30, 160


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(8, name="words")
        self.last = nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.words(ids).mean(1))


def batch(number: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(10 * number + fleet.worker_index())
    ids = torch.randint(0, 50, (16, 3), generator=drawn)
    return ids, (ids.sum(1, keepdim=True) % 2).float()


class Eager:
    def __init__(self) -> None:
        self.model: Any = fleet.distributed_model(Net())
        adagrad = torch.optim.Adagrad(self.model.parameters(), lr=0.05)
        self.mover = fleet.distributed_optimizer(adagrad)

    def update(self, number: int) -> None:
        ids, wanted = batch(number)
        self.mover.minimize(binary_cross_entropy_with_logits(self.model(ids), wanted))

    def holds(self) -> dict[str, Tensor]:
        with torch.no_grad():
            return {"outputs": self.model(torch.arange(50).view(-1, 1))}


class Recorded:
    def __init__(self) -> None:
        ids = static.data("ids", [None, 3], "int64")
        wanted = static.data("wanted", [None, 1])
        self._out = Net()(ids)
        loss = binary_cross_entropy_with_logits(self._out, wanted)
        self._test = static.default_main_program().clone(for_test=True)
        rate = static.lr.piecewise_decay([4, 8], [0.05, 0.02, 0.01])
        optimizer = static.Optimizer(torch.optim.Adagrad, lr=rate)
        fleet.distributed_optimizer(optimizer).minimize(loss)
        self.model, self.mover = static.default_main_program(), static.Executor()
        self.mover.run(static.default_startup_program())

    def update(self, number: int) -> None:
        ids, wanted = batch(number)
        feed = {"ids": ids.numpy(), "wanted": wanted.numpy()}
        self.mover.run(self.model, feed, [])

    def holds(self) -> dict[str, Tensor]:
        ids = np.arange(48).reshape(-1, 3)
        feed = {"ids": ids, "wanted": np.zeros((16, 1), "float32")}
        return {"outputs": torch.as_tensor(self.mover.run(self._test, feed, [self._out])[0])}


def happen(event: str) -> None:
    last = fleet.worker_index() == 1
    if event == "kill" and last:
        os.kill(os.getpid(), signal.SIGKILL)
    elif event == "leave":
        told = Path(os.environ["FLEETX_ACTIVITY"])
        while not told.exists() or '"leaves": true' not in told.read_text():
            time.sleep(0.02)  # until the launcher knows that this worker leaves by itself
        Path(f"middle-{fleet.worker_index()}").write_text("reached")
        while last and not notice.told:
            time.sleep(0.02)


def main(kind: str, folder: Path, event: str) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = kind.startswith("asynchronous")
    fleet.init(strategy=strategy)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    manager = fleet.CheckpointManager(folder, steps=25, keep=2)
    torch.manual_seed(0)
    job = Eager() if kind.endswith("model") else Recorded()
    fleet.init_worker()
    found = manager.load(job.model, job.mover)
    print("went on from", found and found["step"], flush=True)
    while manager.updates < END:
        if manager.updates == MIDDLE and not is_restart():
            happen(event)
        job.update(manager.updates)
        manager.step()
    save_file(job.holds(), folder / f"ended-{fleet.worker_index()}.safetensors")
    fleet.stop_worker()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
