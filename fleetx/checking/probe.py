"""One run of a user's script for a check: some flags left out, stopped after a few batches.

``python -m fleetx.checking.probe --output FOLDER --batches 8 --without amp train.py …``, started
on every worker by ``fleetx check``.
"""

import argparse
import runpy
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from fleetx import roles
from fleetx.checking.eager import gathered
from fleetx.checking.outcome import Outcome, flat_weights
from fleetx.engine import session
from fleetx.engine.engine import Engine


class Probe:
    """Looks at the first model of the script that trains."""

    def __init__(self, batches: int, output: Path) -> None:
        self.batches, self.output = batches, output
        self.start: Tensor | None = None
        self.engine: Engine | None = None
        self.losses: list[float | None] = []

    def attached(self, engine: Engine) -> None:
        """Keep the weights from which the run starts."""
        if self.engine is None:
            self.engine, self.start = engine, flat_weights(engine)

    def finished(self, engine: Engine, loss: Tensor | None) -> None:
        """Count a batch; after the last one, save and end the script."""
        if engine is not self.engine:
            return
        self.losses.append(None if loss is None else float(loss))
        if len(self.losses) == self.batches:
            self.save()
            raise SystemExit(0)

    def save(self) -> None:
        """Write the outcome from the first worker."""
        if self.engine is None or self.start is None or not self.losses:
            return
        outcome = gathered(self.engine, self.start, self.losses)
        if roles.worker_index() == 0:
            torch.save(asdict(outcome) | {"workers": roles.worker_num()}, self.output)


def load(path: Path) -> tuple[Outcome, int]:
    """The outcome that a probe saved, and the number of its workers."""
    saved = torch.load(path, weights_only=True)
    workers = saved.pop("workers")
    return Outcome(**saved), workers


def main() -> None:
    """Run the script under the eyes of a probe."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--without", default="")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    probe = Probe(args.batches, args.output)
    left_out = tuple(filter(None, args.without.split(",")))
    session.watches.append(
        session.Watch(
            change=lambda request: request.without(*left_out),
            attached=probe.attached,
            finished=probe.finished,
        )
    )
    sys.argv = [args.script, *args.arguments]
    sys.path.insert(0, str(Path(args.script).resolve().parent))
    try:
        runpy.run_path(args.script, run_name="__main__")
    except SystemExit as stop:
        if stop.code:
            raise
    if len(probe.losses) < args.batches:
        probe.save()


if __name__ == "__main__":
    main()
