"""One run of a user's script under a stopwatch, stopped after a few steps.

``python -m fleetx.profiling.probe --folder FOLDER --out FOLDER … train.py …``, started on every
worker by ``fleetx profile``.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from fleetx import roles
from fleetx.api import session
from fleetx.api.session import Given, Watch
from fleetx.engine.engine import Engine
from fleetx.plan.error import PlanError
from fleetx.planning.script import run
from fleetx.profiling.measuring import TRACE, Measuring, Wanted
from fleetx.profiling.phases import Phases
from fleetx.profiling.trying import Batch, Trier, Tries, copied
from fleetx.profiling.unsaved import nothing_saved
from fleetx.profiling.watching import Watching

STEPS, TRIES, REFUSED = "steps-{}.jsonl", "tries.json", "refused.txt"
PLAIN = (
    "the script trains without fleetx, so no step of it can be followed; call fleet.init(), "
    "fleet.distributed_model() and fleet.distributed_optimizer() in it (docs/scripts.md)"
)
PAST = (
    "the script has called fleet.init(), but trains a model that is not distributed; give it to "
    "fleet.distributed_model() and its optimizer to fleet.distributed_optimizer()"
)
ENOUGH = 3
"""Updates past fleetx after which the script is taken for one without it."""


class Probe:
    """Looks at the first model of the script that trains.

    Args:
        wanted: what is measured.
        folder: takes what the command reads.
        out: takes the traces.
    """

    def __init__(self, wanted: Wanted, folder: Path, out: Path) -> None:
        self._wanted, self._folder, self._out = wanted, folder, out
        self._watching = Watching(Phases())
        self._stack = ExitStack()
        self._copies: list[tuple[nn.Module, nn.Module | None]] = []
        self._batches: dict[Engine, Batch] = {}
        self._engine: Engine | None = None
        self._measuring: Measuring | None = None
        self._called = self._over = False
        self._strays = 0

    @property
    def watch(self) -> Watch:
        """What the script is followed by."""
        return Watch(
            given=self._given,
            attached=self._attached,
            finished=self._finished,
            saves=False,
        )

    def follow(self, script: str, arguments: Sequence[str]) -> None:
        """Run the script until all is measured."""
        session.watches.append(self.watch)
        hook = register_optimizer_step_post_hook(self._stepped)
        try:
            with nothing_saved(self._say), self._stack:
                self._stack.enter_context(self._watching.watch())
                run(script, arguments)
        except SystemExit as stop:
            if stop.code:
                raise
        finally:
            hook.remove()
            if self._measuring is not None:
                with suppress(Exception):  # what was measured is kept by now
                    self._measuring.close()

    def _given(self, given: Given) -> None:
        if self._wanted.tries and self._engine is None:
            self._copies.append((given.model, copied(given.model)))

    def _attached(self, engine: Engine) -> None:
        if self._engine is not None:
            return
        self._batches[engine] = Batch()

        def called(module: nn.Module, args: Any) -> None:
            self._called = True

        engine.job.model.register_forward_pre_hook(called, prepend=True)
        self._watching.follow(engine)
        if self._wanted.tries:
            engine.given_batch.append(self._look)
        if self._measuring is None:
            rank = roles.worker_index()
            self._measuring = Measuring(
                self._wanted,
                self._watching.phases,
                roles.device(),
                self._out / TRACE.format(rank),
                keep=self._keep,
                say=self._say,
            )

    def _look(self, engine: Engine, given: Any) -> None:
        batch = self._batches.get(engine)
        if batch is None or batch.sample is not None:
            return
        with suppress(PlanError, TypeError, ValueError):  # then no flag is tried, and it is said
            if self._called:
                batch.called(engine.job.model, *given)
            else:
                batch.given(given)

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer has moved something; scripts without fleetx would train to their end."""
        if self._engine is not None or (self._batches and any(e.updates for e in self._batches)):
            return
        self._strays += 1
        if self._strays >= ENOUGH and not any(e.open for e in self._batches):
            self._refuse(PAST if session.begun() else PLAIN)

    def _refuse(self, why: str) -> None:
        (self._folder / REFUSED).write_text(why, encoding="utf-8")
        raise SystemExit(0)

    def _finished(self, engine: Engine, loss: Tensor | None) -> None:
        self._called = False
        if engine.holding or engine not in self._batches:
            return
        self._engine = self._engine or engine
        if engine is not self._engine:
            return
        assert self._measuring is not None
        # A script that catches everything around a batch goes on, and is ended at the next one.
        if self._over:
            raise SystemExit(0)
        if self._measuring.ended():
            self._over = True
            self._stack.close()
            if self._wanted.tries:
                self._try(engine)
            raise SystemExit(0)

    def _keep(self, lap: Mapping[str, float]) -> None:
        """At once, so that nothing is lost if the run is stopped."""
        told = {
            "lap": dict(lap),
            "loads": self._watching.loads,
            "card": roles.device().type == "cuda",
        }
        with (self._folder / STEPS.format(roles.worker_index())).open("a") as file:
            file.write(f"{json.dumps(told)}\n")

    def _try(self, engine: Engine) -> None:
        own = [copy for model, copy in self._copies if model is engine.job.model]
        model = own[0] if own else None
        if model is None:
            self._keep_tries(Tries(why_not="the model cannot be copied, or came without numbers"))
            return
        trier = Trier(
            model=model,
            engine=engine,
            strategy=session.current("distributed_model").strategy,
            batch=self._batches[engine],
            named=self._wanted.named,
            seconds=self._wanted.seconds,
            say=self._say,
            keep=self._keep_tries,
        )
        try:
            self._keep_tries(trier.run())
        except PlanError as error:
            self._keep_tries(Tries(why_not=str(error)))

    def _keep_tries(self, tries: Tries) -> None:
        if roles.worker_index() == 0:
            file = self._folder / TRIES
            beside = file.with_suffix(".new")
            beside.write_text(json.dumps(tries.to_json()), encoding="utf-8")
            beside.replace(file)

    def _say(self, said: str) -> None:
        if not roles.started() or roles.worker_index() == 0:
            print(f"fleetx profile: {said} …", flush=True)


def main() -> None:
    """Run the script under a probe."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--wanted", type=json.loads, required=True)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    wanted = Wanted(**{**args.wanted, "named": tuple(args.wanted["named"])})
    Probe(wanted, args.folder, args.out).follow(args.script, args.arguments)


if __name__ == "__main__":
    main()
