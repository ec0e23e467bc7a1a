"""A job of many ranks, told as real workers tell it and passed on as a real launcher does."""

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetx.launch.cluster import Process, World
from fleetx.launch.telling import Telling

PLAN = {
    "mesh": {"pp": 2, "dp": 2, "sharding": 8, "tp": 2},
    "strategies": [
        {"name": "amp", "phase": "precision", "at_rest": False},
        {"name": "sharding", "phase": "layout", "at_rest": False},
    ],
    "words": "Plan for 64 workers: pp 2 x dp 2 x sharding 8 x tp 2",
}


@dataclass
class SimulatedJob:
    """Ranks of one machine; nobody computes."""

    folder: Path
    ranks: int = 64
    servers: int = 0
    plan: dict[str, Any] = field(default_factory=lambda: PLAN)
    step: int = 0
    codes: dict[int, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.told = self.folder / "told"
        self.told.mkdir(exist_ok=True)
        self.telling = Telling(self.folder, "train.py --lr 0.1")

    def begin(self, attempt: int = 0) -> None:
        """Start all ranks."""
        ranks = [
            Process(role="TRAINER", rank=at, local_rank=at, endpoint=f"127.0.0.1:{at + 1}")
            for at in range(self.ranks)
        ]
        servers = [
            Process(role="PSERVER", rank=at, local_rank=at, endpoint=f"127.0.0.1:{at + 9001}")
            for at in range(self.servers)
        ]
        self.local = (*servers, *ranks)
        world = World(
            workers=tuple(each.endpoint for each in ranks),
            servers=tuple(each.endpoint for each in servers),
            local=self.local,
        )
        self.codes, self.step = {}, 0
        for old in self.told.iterdir():
            old.unlink()
        files = [self.told / each.log_name for each in self.local]
        self.telling.begin(world, files, attempt, "127.0.0.1")
        (self.folder / "workerlog.0").write_text("epoch 1/3\n", encoding="utf-8")

    def advance(self, steps: int = 5, **of_rank: dict[str, Any]) -> None:
        """All ranks that live make some steps; ``r3={...}`` changes what rank 3 tells."""
        self.step += steps
        for process in self.local:
            told = self._server(process) if process.role == "PSERVER" else self._worker(process)
            told |= of_rank.get(f"r{process.rank}", {}) if process.role == "TRAINER" else {}
            (self.told / process.log_name).write_text(json.dumps(told), encoding="utf-8")
        self.telling.look(self.codes, now=True)

    def kill(self, rank: int) -> None:
        """A rank is gone."""
        self.codes[self.servers + rank] = -9

    def _worker(self, process: Process) -> dict[str, Any]:
        now = time.monotonic()
        noise = 0.03 * math.sin(self.step * process.rank)
        figures = {
            "loss": 0.1 + 2.3 * math.exp(-self.step / 300) + noise,
            "batch_size": 32,
            "memory": 18e9 + 2e8 * (process.rank % 7),
            "memory_total": 80e9,
            "exchanging": 0.3 + 0.01 * (process.rank % 5),
        }
        return {
            "state": "running",
            "doing": ("in forward", "in backward", "in the update")[process.rank % 3],
            **dict.fromkeys(("batches", "calls", "ended", "updates"), self.step),
            **{"still": now, "written": now, "pid": 1, "figures": figures},
            "facts": {"plan": self.plan},
        }

    def _server(self, process: Process) -> dict[str, Any]:
        now = time.monotonic()
        rows = {"rows": 100 * self.step, "pulled": 640 * self.step, "pushed": 320 * self.step}
        figures = {"memory": 3e9, "tables": {"emb": rows | {"updates": self.step}}}
        return {"state": "running", "still": now, "written": now, "pid": 1, "figures": figures}
