"""``Executor``: runs start-up programs, training programs and plain ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleetx.expected import ITERABLE, a, expect
from fleetx.record.error import ProgramError
from fleetx.record.interception import suspend
from fleetx.record.recording_state import paused
from fleetx.static.lr import Schedule
from fleetx.static.record.current import default_main_program
from fleetx.static.record.program import Program
from fleetx.static.run import from_dataset
from fleetx.static.run.arrays import as_array
from fleetx.static.run.compiled import CompiledProgram
from fleetx.static.run.devices import Place, device_of
from fleetx.static.run.executions import executions
from fleetx.static.run.fetch_handler import FetchHandler
from fleetx.static.run.runs import ForwardRun, Run
from fleetx.static.run.scope import global_scope
from fleetx.static.run.startup import initialise
from fleetx.static.run.training import training_of
from fleetx.static.run.training_run import begun, running

Fetch = Tensor | str | Schedule
Feed = Mapping[str, Any]


_FEED = a(list | tuple, "a dict of arrays or tensors by the name of the input")
_FETCHES = ITERABLE.such_as("a list of variables or of their names")


class Executor:
    """Computes on one device; values belong to programs, so that several executors share them."""

    def __init__(self, place: Place | torch.device | str | None = None) -> None:
        self.device = device_of(place)

    def run(
        self,
        program: Program | CompiledProgram | None = None,
        feed: Feed | Sequence[Feed] | None = None,
        fetch_list: Sequence[Fetch] | Fetch | None = None,
        *,
        return_numpy: bool = True,
        use_program_cache: bool = False,
    ) -> list[Any]:
        """Run a program once and return what was fetched.

        Args:
            program: the default main program if None.
            feed: name -> numpy array or tensor, for the inputs that the fetches depend on; left
                out when the program has a reader.
            fetch_list: variables by object or by name.
            return_numpy: arrays instead of tensors.
            use_program_cache: trust that feeds look like those of the first run with these
                fetches, and check them no more.
        """
        suspend()
        program = default_main_program() if program is None else program
        if isinstance(program, CompiledProgram):
            program = program.prepared()
        if not isinstance(program, Program):
            raise TypeError(f"Executor.run() takes a static.Program first, got {program!r}")
        fetches = _listed(fetch_list)
        global_scope().know(program)
        if not fetches and not feed and _is_startup(program):
            initialise(program, self.device)
            return []
        run = self._run_of(program)
        found = run.run(program, _one_feed(feed), fetches, cached=use_program_cache)
        with paused():  # copying a parameter that is fetched is no operator of a program
            return [_value(value, return_numpy) for value in found]

    def _run_of(self, program: Program) -> Run:
        training = training_of(program)
        if training is not None:
            return (begun(training) or running(program, self.device)).on(self.device)
        kept = executions(program).forward
        run = kept.get(self.device)
        if run is None:
            run = kept.setdefault(self.device, ForwardRun(program, self.device))
        return run

    def train_from_dataset(  # noqa: PLR0917 (the order of Paddle)
        self,
        program: Program | CompiledProgram | None = None,
        dataset: from_dataset.Batches | None = None,
        scope: Any = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Sequence[Fetch] | Fetch | None = None,
        fetch_info: Sequence[str] | str | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> int:
        """Train a program on every batch of a data set; returns how many there were.

        In a job with parameter servers all workers must call it, and it ends when all of them are
        through with their data: everybody then sees everything that was learned.

        Args:
            program: one with an optimizer; the default main program if None.
            dataset: a ``fleet.InMemoryDataset`` or a ``fleet.QueueDataset``; its slots go to the
                inputs of the same names.
            scope: None, because values belong to their program.
            thread: 0 or 1; workers are processes.
            debug: False; operators are timed with ``torch.profiler``.
            fetch_list: variables whose values are logged.
            fetch_info: what to call them there; their names if None.
            print_period: batches between two lines of the log.
            fetch_handler: looks at variables every so many seconds.
        """
        from_dataset.refuse_idle("train_from_dataset", scope=scope, thread=thread, debug=debug)
        watching = from_dataset.Watching.of(fetch_list, fetch_info, fetch_handler, print_period)
        return from_dataset.train(self, program, dataset, watching)

    def infer_from_dataset(  # noqa: PLR0917 (the order of Paddle)
        self,
        program: Program | CompiledProgram | None = None,
        dataset: from_dataset.Batches | None = None,
        scope: Any = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Sequence[Fetch] | Fetch | None = None,
        fetch_info: Sequence[str] | str | None = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> int:
        """The same without learning: a program that trains is run as its clone for tests."""
        from_dataset.refuse_idle("infer_from_dataset", scope=scope, thread=thread, debug=debug)
        watching = from_dataset.Watching.of(fetch_list, fetch_info, fetch_handler, print_period)
        return from_dataset.infer(self, program, dataset, watching)

    def close(self) -> None:
        """Nothing is held: values belong to their programs."""


def _is_startup(program: Program) -> bool:
    """Whether a program has first values to give, or nothing at all."""
    return program.objective is None and (bool(program.initial) or not len(program.graph.nodes))


def _listed(fetches: Sequence[Fetch] | Fetch | None) -> list[Fetch]:
    if type(fetches) is list:  # as most scripts write it; quick to see
        return fetches
    if fetches is None:
        return []
    if isinstance(fetches, Tensor | str | Schedule):
        return [fetches]
    expect("Executor.run", "fetch_list", fetches, _FETCHES)
    return list(fetches)


def _one_feed(feed: Feed | Sequence[Feed] | None) -> Feed | None:
    """Loaders give a list with one feed for each device of the process, which has one."""
    if feed is None or isinstance(feed, (dict, Mapping)):  # dict first: it is quick to see
        return feed
    expect("Executor.run", "feed", feed, _FEED)
    if len(feed) != 1:
        raise ProgramError(
            f"feed is a list of {len(feed)} dicts, but a process feeds its one device; start one "
            "process for each device with fleetrun, and feed each a dict."
        )
    return feed[0]


def _value(value: Any, as_numpy: bool) -> Any:
    if not isinstance(value, Tensor):
        return np.asarray(value) if as_numpy else torch.as_tensor(value)
    # A copy: memory of parameters and feeds must not change under the caller.
    if not as_numpy:
        return value.detach().clone()
    array = as_array(value)
    return array.copy() if value.is_cpu else array
