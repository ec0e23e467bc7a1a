"""How a program is run: once for each batch, lowered once for each list of fetches."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from typing_extensions import override

from fleetx.plan.strategy import Plan
from fleetx.record.initial import check_initialised
from fleetx.record.recording_state import paused
from fleetx.record.regions import OUTSIDE, Regions, region
from fleetx.record.variable import as_variable
from fleetx.static.lower.build_options import Build, read
from fleetx.static.lower.flattening import needed
from fleetx.static.lower.lowered import Lowered
from fleetx.static.lr import Schedule
from fleetx.static.record.backward import differentiate
from fleetx.static.record.program import Program
from fleetx.static.run.feeding import Feeds

Fetch = Tensor | str | Schedule
Feed = Mapping[str, Any]

_NO_REGIONS = nullcontext()


@dataclass(frozen=True)
class Form:
    """A program as it runs for one list of fetches."""

    names: tuple[str, ...]
    """What is fetched, in order."""
    nodes: tuple[fx.Node, ...]
    """What is computed: in training the loss, then those fetches that operators compute."""
    computed: tuple[str, ...]
    provided: tuple[str, ...]
    """Fetches that come from the training itself: gradients and the learning rate."""
    feeds: Feeds
    regions: bool
    """Whether operators were recorded under torch.no_grad() or torch.autocast()."""


class Run(ABC):
    """A program on a device, lowered once for each list of fetches."""

    def __init__(self, program: Program, plan: Plan | None, device: torch.device) -> None:
        check_initialised(program.layers)
        program.state.to(device)
        self.device = device
        self._build = prepared(program, plan, device)
        self._forms: dict[tuple[Any, ...], Form] = {}
        self._seeded = False
        self._alone = threading.RLock()
        """Threads run one after another: the lowered program is what one of them has chosen."""

    def run(
        self, program: Program, feed: Feed | None, fetches: Sequence[Fetch], *, cached: bool
    ) -> list[Any]:
        """Run once, or as often as the options say, and return the values of the fetches."""
        names = [_name(program, fetch) for fetch in fetches]
        key = (id(program), program.version, *names)
        with self._alone:
            return self._run(program, feed, key, cached)

    def _run(
        self, program: Program, feed: Feed | None, key: tuple[Any, ...], cached: bool
    ) -> list[Any]:
        form = self._forms.get(key)
        cached = cached and form is not None
        if form is None:
            form = self._forms[key] = self._form(program, key[2:])
        if program.random_seed and not self._seeded:
            torch.manual_seed(program.random_seed)
            self._seeded = True
        found: list[Any] = []
        with paused(), Regions() if form.regions else _NO_REGIONS:
            for _ in range(self._build.iterations):
                batch = next_batch(program) if feed is None else feed
                found = self._once(program, form, form.feeds.arguments(batch, checked=not cached))
        return found

    @property
    def iterations(self) -> int:
        """Batches in one run."""
        return self._build.iterations

    def _form(self, program: Program, names: tuple[str, ...]) -> Form:
        provided = self._provided(program)
        computed = tuple(dict.fromkeys(name for name in names if name not in provided))
        nodes = (*self._first(program), *(program.node(name) for name in computed))
        used = needed(program, nodes)
        inputs = {str(n.target) for n in used if n.op == "placeholder"}
        return Form(
            names=names,
            nodes=nodes,
            computed=computed,
            provided=tuple(name for name in names if name in provided),
            feeds=Feeds(program, inputs, self.device),
            regions=any(region(node) != OUTSIDE for node in used),
        )

    def _provided(self, program: Program) -> set[str]:
        return set()

    def _first(self, program: Program) -> tuple[fx.Node, ...]:
        """What is computed whatever is fetched."""
        return ()

    @abstractmethod
    def _once(self, program: Program, form: Form, feeds: tuple[Any, ...]) -> list[Any]:
        """The values of the fetches after one batch."""


def _name(program: Program, fetch: Fetch) -> str:
    if isinstance(fetch, str):
        return fetch
    if isinstance(fetch, Schedule):
        return fetch.name
    variable = as_variable(fetch, "fetch_list")
    return program.name_of(variable.node if variable.program is program else program.find(fetch))


def next_batch(program: Program) -> Feed:
    """What the program's own readers give; nothing when it has none."""
    found: dict[str, Any] = {}
    for reader in program.readers:
        found |= reader.next_feed()
    return found


def prepared(program: Program, plan: Plan | None, device: torch.device) -> Build:
    """Obey the options of a ``CompiledProgram``, or of the job's strategy, that act at once."""
    options = plan.options if plan is not None else {}
    build, execution = program.build or (
        options.get("build_strategy"),
        options.get("execution_strategy"),
    )
    found = read(build, execution, device)
    if found.threads is not None:
        torch.set_num_threads(found.threads)
    if found.drawing:
        program.draw(found.drawing)
    return found


class ForwardRun(Run):
    """A program without an optimizer."""

    def __init__(self, program: Program, device: torch.device) -> None:
        super().__init__(program, None, device)
        self._lowered = Lowered(program, build=self._build)

    @override
    def _once(self, program: Program, form: Form, feeds: tuple[Any, ...]) -> list[Any]:
        program.state.gather("static.Executor.run")
        self._lowered.choose(program, form.nodes, device=self.device)
        with torch.set_grad_enabled(self._lowered.contains(differentiate)):
            values = dict(zip(form.computed, self._lowered(feeds), strict=True))
        return [values[name] for name in form.names]
