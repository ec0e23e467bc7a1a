"""How a program is run: forward alone, or as a step of training through the engine."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from typing_extensions import override

from fleetx.engine import session
from fleetx.engine.engine import Engine
from fleetx.plan.plan import Plan
from fleetx.static.alone import LoneMesh, lone_plan
from fleetx.static.backward import GRADIENT, differentiate
from fleetx.static.build_options import Build, read
from fleetx.static.error import ProgramError
from fleetx.static.feeding import fed
from fleetx.static.flattening import needed
from fleetx.static.lowered import Lowered
from fleetx.static.lr import Schedule
from fleetx.static.minimize import Training
from fleetx.static.program import Program
from fleetx.static.startup import check_initialised
from fleetx.static.variable import Variable, as_variable

Fetch = Tensor | str | Schedule


class Run(ABC):
    """A program on a device, lowered once for each set of fetches."""

    def __init__(self, program: Program, device: torch.device) -> None:
        self.device = device
        self._needed: dict[tuple[Any, ...], dict[str, fx.Node]] = {}
        check_initialised(program.layers)

    @abstractmethod
    def run(
        self,
        program: Program,
        feed: Mapping[str, Any] | None,
        fetches: Sequence[Fetch],
        *,
        cached: bool,
    ) -> list[Any]:
        """Run once and return the values of the fetches."""

    def _feeds(
        self,
        program: Program,
        feed: Mapping[str, Any] | None,
        nodes: Sequence[fx.Node],
        cached: bool,
    ) -> tuple[Tensor | None, ...]:
        if feed is None:
            feed = next_batch(program)
        key = (id(program), program.version, *(node.name for node in nodes))
        seen = key in self._needed
        if not seen:
            self._needed[key] = {
                str(node.target): node
                for node in needed(program, nodes)
                if node.op == "placeholder"
            }
        return fed(
            program, feed, self._needed[key], device=self.device, checked=not (cached and seen)
        )


def _known(fetch: Fetch) -> Variable | str:
    if isinstance(fetch, Tensor):
        return as_variable(fetch, "fetch_list")
    return fetch if isinstance(fetch, str) else fetch.name


def next_batch(program: Program) -> Mapping[str, Any]:
    """What the program's own reader gives; nothing when it has none."""
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
        super().__init__(program, device)
        program.state.to(device)
        self._build = prepared(program, None, device)
        self._lowered = Lowered(program, build=self._build)
        self._seeded = False

    @override
    def run(
        self,
        program: Program,
        feed: Mapping[str, Any] | None,
        fetches: Sequence[Fetch],
        *,
        cached: bool,
    ) -> list[Any]:
        nodes = [program.find(_known(fetch)) for fetch in fetches]
        feeds = self._feeds(program, feed, nodes, cached)
        if program.random_seed and not self._seeded:
            torch.manual_seed(program.random_seed)
            self._seeded = True
        self._lowered.choose(program, nodes, device=self.device)
        needs_gradients = any(node.target is differentiate for node in program.graph.nodes)
        with torch.set_grad_enabled(needs_gradients):
            for _ in range(self._build.iterations - 1):
                self._lowered(feeds)
                feeds = feeds if feed is not None else self._feeds(program, None, nodes, cached)
            return list(self._lowered(feeds))


class TrainingRun(Run):
    """A program with an optimizer: every run is a batch through the engine."""

    def __init__(self, program: Program, training: Training, device: torch.device) -> None:
        super().__init__(program, device)
        self._training, self._outputs, self._seeded = training, (), False
        plan = training.plan or lone_plan()
        program.state.to(device)
        cuts = tuple(name for strategy in plan.strategies for name in strategy.cuts())
        self._build = prepared(program, plan, device)
        self.lowered = Lowered(program, cuts=cuts, by_device=plan.mesh["pp"] > 1, build=self._build)
        self.lowered.choose(program, [program.node(training.loss)], device=device)
        self._flags = training.flags(program)
        self._thaw()
        self.engine = self._make_engine(plan)
        self.optimizer = training.bind(program, self.engine, fused=self._build.fused_update)

    def _make_engine(self, plan: Plan) -> Engine:
        if self._training.distributed:
            return session.engine(plan, self.lowered, criterion=self._criterion)
        return Engine(
            plan, self.lowered, device=self.device, mesh=LoneMesh(), criterion=self._criterion
        )

    def on(self, device: torch.device) -> "TrainingRun":
        """Itself, if it lives on that device."""
        if device != self.device:
            raise ProgramError(
                f"the program was trained on {self.device} and cannot go on on {device}, because "
                "its optimizer has state there; use one place for all executors that train it."
            )
        return self

    def _criterion(self, outputs: Any, targets: Any) -> Tensor:
        self._outputs = outputs
        loss: Tensor = outputs[0]
        return loss

    def _thaw(self) -> None:
        """Other programs may train other parts of the same parameters."""
        for parameter, trained in self._flags:
            if parameter.requires_grad is not trained:
                parameter.requires_grad_(trained)

    @override
    def run(
        self,
        program: Program,
        feed: Mapping[str, Any] | None,
        fetches: Sequence[Fetch],
        *,
        cached: bool,
    ) -> list[Any]:
        loss = program.node(self._training.loss)
        known = [_known(fetch) for fetch in fetches]
        names = [entry if isinstance(entry, str) else entry.name for entry in known]
        nodes = {
            name: program.find(entry)
            for name, entry in zip(names, known, strict=True)
            if name not in self._training.provided(program)
        }
        wanted = [loss, *nodes.values()]
        feeds = self._feeds(program, feed, wanted, cached)
        if program.random_seed and not self._seeded:
            torch.manual_seed(program.random_seed)
            self._seeded = True
        self.lowered.choose(program, wanted, device=self.device)
        self._thaw()
        provided = [name for name in names if name not in nodes]
        for _ in range(self._build.iterations - 1):
            self._step(feeds, [])
            feeds = feeds if feed is not None else self._feeds(program, None, wanted, cached)
        found = self._step(feeds, provided)
        found |= dict(zip(nodes, self._outputs[1:], strict=True))
        self._outputs = ()
        return [found[name] for name in names]

    def _step(self, feeds: tuple[Any, ...], provided: Sequence[str]) -> dict[str, Any]:
        """One batch; between backward and update the gradients can be seen."""
        engine, training = self.engine, self._training
        assert engine.step is not None
        training.tick(self.optimizer)
        found: dict[str, Any] = {}
        for name in provided:
            found[name] = training.rate(self.optimizer)
        engine.begin()
        loss = engine.step.drive(engine.step, (feeds, ()))
        for name in provided:
            if name.endswith(GRADIENT):
                found[name] = training.gradient(name.removesuffix(GRADIENT), self.lowered)
        engine.finish(loss)
        if not engine.holding:
            self.optimizer.zero_grad()
        return found
