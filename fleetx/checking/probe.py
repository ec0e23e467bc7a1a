"""One run of a user's script for a check: some flags left out, stopped after a few batches.

``python -m fleetx.checking.probe --output FOLDER --batches 8 --without amp train.py …``, started
on every worker by ``fleetx check``.
"""

import argparse
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fleetx import roles
from fleetx.api import session
from fleetx.checking.eager import gathered, of_all_workers
from fleetx.checking.outcome import Outcome, differing, digest, flat_weights
from fleetx.engine.engine import Engine


class Probe:
    """Looks at the first model of the script that trains."""

    def __init__(self, batches: int, output: Path) -> None:
        self.batches, self.output = batches, output
        self.start: Tensor | None = None
        self.engine: Engine | None = None
        self.losses: list[float | None] = []
        self._given: dict[nn.Module, tuple[str, ...]] = {}
        self._has_begun = False
        self._begun: tuple[str, ...] = ()
        self._fed: list[str] = [""]
        """What went into each batch on this worker; the last one is open."""

    def given(self, given: session.Given) -> None:
        """Compare what the workers bring, before it is made equal."""
        model = given.model
        own = {name: digest(p) for name, p in model.named_parameters()}
        others = roles.util.all_gather(own)
        self._given[model] = tuple(n for n in own if any(o.get(n) != own[n] for o in others))

    def attached(self, engine: Engine) -> None:
        """Watch the first model that has an optimizer."""
        if self.engine is None:
            self.engine, self.start = engine, flat_weights(engine)
            train_batch = engine.train_batch

            def fed(batch: Any) -> Tensor:
                self._feed(batch)
                with self._look_away():
                    return train_batch(batch)

            vars(engine)["train_batch"] = fed
            engine.job.model.register_forward_pre_hook(
                lambda module, args, kwargs: self._feed((args, kwargs)),
                prepend=True,  # before parameters are gathered for the forward
                with_kwargs=True,
            )

    @contextmanager
    def _look_away(self) -> Iterator[None]:
        """A drive calls the model with what it has computed, on some ranks and at its own times."""
        feed, vars(self)["_feed"] = self._feed, lambda batch: None
        try:
            yield
        finally:
            vars(self)["_feed"] = feed

    def _feed(self, batch: Any) -> None:
        if not torch.is_grad_enabled():
            return  # a validation between the batches
        if not self._has_begun:
            assert self.engine is not None
            self._has_begun = True
            sizes, together = of_all_workers(self.engine)
            self.start = together[0]
            self._begun = differing((together - together[0]).abs().amax(dim=0), sizes)
        self._fed[-1] += digest(batch)

    def finished(self, engine: Engine, loss: Tensor | None) -> None:
        """Count a batch; after the last one, save and end the script."""
        if engine is not self.engine:
            return
        self._fed.append("")
        self.losses.append(None if loss is None else float(loss))
        if len(self.losses) == self.batches:
            self.save()
            raise SystemExit(0)

    def save(self) -> None:
        """Write the outcome from the first worker."""
        if self.engine is None or self.start is None or not self.losses:
            return
        fed = [" ".join(each) for each in zip(*roles.util.all_gather(self._fed), strict=False)]
        outcome = gathered(
            self.engine,
            self.start,
            self.losses,
            given=self._given.get(self.engine.job.model, ()),
            begun=self._begun,
            fed=tuple(fed[: len(self.losses)]),
        )
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
            given=probe.given,
            attached=probe.attached,
            finished=probe.finished,
            compares=True,
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
