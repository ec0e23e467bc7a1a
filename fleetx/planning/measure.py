"""One run of a user's script under a chosen plan, stopped after a few batches.

``python -m fleetx.planning.measure --plan FILE --output FILE train.py …``, started on every worker
by ``fleetx plan --measure``.
"""

import argparse
import json
import time
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from fleetx import roles
from fleetx.api import session
from fleetx.api.session import Session, Watch
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.engine.engine import Engine
from fleetx.planning.script import run

WARM_UP, UPDATES = 3, 5


class Stopwatch:
    """Times updates of the first model of the script that trains.

    Args:
        chosen: the plan, as `fleetx plan` has written it down.
        output: where worker 0 writes what it took.
    """

    def __init__(self, chosen: Path, output: Path) -> None:
        plan = json.loads(chosen.read_text(encoding="utf-8"))
        self._strategy = DistributedStrategy()
        self._strategy.load_from_prototxt(plan["strategy"])
        self._portion, self._merged = Fraction(plan["portion"]), int(plan["merged"])
        self._output = output
        self._times: list[float] = []
        self._engine: Engine | None = None

    def begins(self, job: Session) -> None:
        """Put the plan in the place of what the script asks for."""
        job.strategy = self._strategy
        job.portion, job.merged = self._portion, self._merged

    def finished(self, engine: Engine, loss: Tensor | None) -> None:
        """After a batch; after the last one, save and end the script."""
        self._engine = self._engine or engine
        if engine is not self._engine or engine.holding:
            return
        if roles.device().type == "cuda":
            torch.cuda.synchronize()
        self._times.append(time.perf_counter())
        if len(self._times) > WARM_UP + UPDATES:
            raise SystemExit(0)

    def save(self) -> None:
        """Write what an update took; a script that ended early may have warmed up for less."""
        passed = self._times[min(WARM_UP, max(len(self._times) - 2, 0)) :]
        taken = sorted(after - before for before, after in pairwise(passed))
        if not taken:
            return
        found: dict[str, float] = {"seconds": taken[len(taken) // 2]}
        if roles.device().type == "cuda":
            found["memory"] = torch.cuda.max_memory_allocated()
        if roles.worker_index() == 0:
            self._output.write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    """Run the script under the plan."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    watch = Stopwatch(args.plan, args.output)
    session.watches.append(Watch(begins=watch.begins, finished=watch.finished))
    try:
        run(args.script, args.arguments)
    except SystemExit as stop:
        if stop.code:
            raise
    watch.save()


if __name__ == "__main__":
    main()
