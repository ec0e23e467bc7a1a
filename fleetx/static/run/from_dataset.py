"""A program and a data set: every batch of the one goes once through the other."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fleetx.api import servers
from fleetx.api.data_pass import train_through
from fleetx.record.error import ProgramError
from fleetx.record.interception import suspend
from fleetx.record.variable import as_variable
from fleetx.static.lr import Schedule
from fleetx.static.record.current import default_main_program
from fleetx.static.record.program import Program
from fleetx.static.run.compiled import CompiledProgram
from fleetx.static.run.fetch_ahead import Show, fetching_ahead
from fleetx.static.run.fetch_handler import FetchHandler
from fleetx.static.run.scope import global_scope
from fleetx.static.run.slot_feeds import Slotted, feed_of
from fleetx.static.run.training import training_of
from fleetx.static.run.training_run import running

logger = logging.getLogger(__name__)

Batches = Iterable[Mapping[str, Slotted]]
Fetch = Tensor | str | Schedule


class Runner(Protocol):
    """What is needed of an ``Executor``."""

    device: torch.device

    def run(
        self,
        program: Program | CompiledProgram | None = None,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        fetch_list: Sequence[Fetch] | Fetch | None = None,
        *,
        return_numpy: bool = True,
    ) -> list[Any]:
        """Run a program once and return what was fetched."""


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What is looked at on the way."""

    fetches: Sequence[Fetch]
    titles: Sequence[str]
    handler: FetchHandler | None
    period: int
    """Batches between two reports."""

    @staticmethod
    def of(fetches: Any, titles: Any, handler: Any, period: int) -> "Watching":
        """Check what a user said."""
        one = isinstance(fetches, Tensor | str | Schedule)
        listed: list[Fetch] = [fetches] if one else list(fetches or ())
        named = [titles] if isinstance(titles, str) else list(titles or map(_name, listed))
        if len(named) != len(listed):
            raise ValueError(
                f"fetch_info has {len(named)} texts for the {len(listed)} variables of fetch_list; "
                "give one for each, or leave it out"
            )
        if handler is not None and not isinstance(handler, FetchHandler):
            raise TypeError(f"fetch_handler is a static.FetchHandler, got {handler!r}")
        return Watching(fetches=listed, titles=named, handler=handler, period=period)

    @property
    def everything(self) -> list[Fetch]:
        """What a run fetches: the list, then what the handler looks at."""
        return [*self.fetches, *(self.handler.variables() if self.handler else ())]

    def report(self, number: int, found: Sequence[Tensor]) -> None:
        """Log the list."""
        pairs = zip(self.titles, found, strict=False)
        logger.info("batch %d: %s", number, ", ".join(f"{n} {_text(v)}" for n, v in pairs))

    def look(self, found: Sequence[Tensor]) -> None:
        """Call the handler when it is time."""
        if self.handler is not None and self.handler.due():
            values = map(_array, found[len(self.fetches) :])
            self.handler.handler(dict(zip(self.handler.var_dict, values, strict=True)))


def train(executor: Runner, program: Any, dataset: Any, watching: Watching) -> int:
    """Train a program on every batch; the workers of a job with servers end together."""
    chosen = _program(program, "train_from_dataset")
    training = training_of(chosen)
    if training is None:
        raise ProgramError(
            "train_from_dataset() was given a program without an optimizer, so it would learn "
            "nothing; call minimize(loss) first, or use infer_from_dataset()."
        )
    run = running(chosen, executor.device)
    if run.iterations != 1:
        raise ProgramError(
            f"execution_strategy.num_iteration_per_run = {run.iterations} would train every batch "
            f"{run.iterations} times, and train_from_dataset() gives each once; leave it at 1."
        )
    servers.open_tables()  # also by a worker that has no batch: all meet there
    show = fetching_ahead(chosen, run)
    count = _through(executor, chosen, dataset, watching, show)
    # Shares differ in length, and schedules count runs: all go on where the furthest is.
    clock = training.clock()
    clock.ticks = servers.furthest(clock.ticks)
    return count


def infer(executor: Runner, program: Any, dataset: Any, watching: Watching) -> int:
    """Compute the fetches for every batch, and change nothing."""
    chosen = _program(program, "infer_from_dataset")
    if not watching.everything:
        raise ProgramError(
            "infer_from_dataset() computes what is fetched, and nothing is; pass fetch_list=[...] "
            "or a fetch_handler."
        )
    servers.open_tables()
    if chosen.objective is not None:
        chosen = chosen.clone(for_test=True)
    return _through(executor, chosen, dataset, watching)


def _through(
    executor: Runner,
    program: Program,
    dataset: Any,
    watching: Watching,
    show: Show | None = None,
) -> int:
    if not isinstance(dataset, Iterable):
        raise TypeError(
            f"dataset is a fleet.InMemoryDataset or a fleet.QueueDataset, got {dataset!r}"
        )
    fetches = watching.everything

    def step(batch: Mapping[str, Slotted]) -> Any:
        feed = feed_of(program, batch)
        found = executor.run(program, feed, fetches, return_numpy=False)
        watching.look(found)
        return found

    report = watching.report if watching.fetches else None
    return train_through(dataset, step, ahead=show, report=report, print_period=watching.period)


def refuse_idle(call: str, *, scope: Any, thread: int, debug: bool) -> None:
    """Options of Paddle's executor that have nothing to act on here."""
    if scope is not None and scope is not global_scope():
        raise ValueError(
            f"{call}(scope={scope!r}): values belong to their program, so there is one scope; "
            "leave it out"
        )
    if thread not in (0, 1):
        raise ValueError(
            f"{call}(thread={thread}): a worker computes its batches one after the other; leave it "
            "at 0, and start more workers for more threads of training"
        )
    if debug:
        raise ValueError(
            f"{call}(debug=True): times of operators are not kept here; leave it False, and call "
            "it under torch.profiler.profile()"
        )


def _program(given: Any, call: str) -> Program:
    suspend()
    program = default_main_program() if given is None else given
    if isinstance(program, CompiledProgram):
        program = program.prepared()
    if not isinstance(program, Program):
        raise TypeError(f"Executor.{call}() takes a static.Program first, got {program!r}")
    return program


def _name(fetch: Fetch) -> str:
    if isinstance(fetch, str):
        return fetch
    return fetch.name if isinstance(fetch, Schedule) else as_variable(fetch, "fetch_list").name


def _array(value: Tensor) -> np.ndarray:
    value = value.detach()
    return np.array((value.float() if value.dtype.itemsize == 2 else value).cpu().numpy())


def _text(value: Tensor) -> str:
    found = _array(value)
    return f"{found.item():.6g}" if found.size == 1 else np.array2string(found, precision=6)
