"""How a program is run: forward alone, or as a step of training through the engine."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from typing_extensions import override

from fleetx import roles
from fleetx.comm.messages import spread as spread_over
from fleetx.engine import session
from fleetx.engine.engine import Engine
from fleetx.engine.weights import whole
from fleetx.plan.plan import Plan
from fleetx.static.alone import LoneMesh, lone_plan
from fleetx.static.backward import GRADIENT, differentiate
from fleetx.static.build_options import Build, read
from fleetx.static.error import ProgramError
from fleetx.static.feeding import Feeds
from fleetx.static.fetching import everything, joined
from fleetx.static.flattening import needed
from fleetx.static.interception import paused
from fleetx.static.lowered import Lowered
from fleetx.static.lr import Schedule
from fleetx.static.minimize import Training
from fleetx.static.program import Program
from fleetx.static.spread import Spread, spreads
from fleetx.static.startup import check_initialised
from fleetx.static.variable import as_variable

Fetch = Tensor | str | Schedule
Feed = Mapping[str, Any]


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


class Run(ABC):
    """A program on a device, lowered once for each list of fetches."""

    def __init__(self, program: Program, plan: Plan | None, device: torch.device) -> None:
        check_initialised(program.layers)
        program.state.to(device)
        self.device = device
        self._build = prepared(program, plan, device)
        self._forms: dict[tuple[Any, ...], Form] = {}
        self._seeded = False

    def run(
        self, program: Program, feed: Feed | None, fetches: Sequence[Fetch], *, cached: bool
    ) -> list[Any]:
        """Run once, or as often as the options say, and return the values of the fetches."""
        names = tuple(_name(fetch) for fetch in fetches)
        key = (id(program), program.version, *names)
        form = self._forms.get(key)
        cached = cached and form is not None
        if form is None:
            form = self._forms[key] = self._form(program, names)
        if program.random_seed and not self._seeded:
            torch.manual_seed(program.random_seed)
            self._seeded = True
        found: list[Any] = []
        with paused():
            for _ in range(self._build.iterations):
                batch = next_batch(program) if feed is None else feed
                found = self._once(program, form, form.feeds.arguments(batch, checked=not cached))
        return found

    def _form(self, program: Program, names: tuple[str, ...]) -> Form:
        provided = self._provided(program)
        computed = tuple(dict.fromkeys(name for name in names if name not in provided))
        nodes = (*self._first(program), *(program.node(name) for name in computed))
        inputs = {str(n.target) for n in needed(program, nodes) if n.op == "placeholder"}
        return Form(
            names=names,
            nodes=nodes,
            computed=computed,
            provided=tuple(name for name in names if name in provided),
            feeds=Feeds(program, inputs, self.device),
        )

    def _provided(self, program: Program) -> set[str]:
        return set()

    def _first(self, program: Program) -> tuple[fx.Node, ...]:
        """What is computed whatever is fetched."""
        return ()

    @abstractmethod
    def _once(self, program: Program, form: Form, feeds: tuple[Any, ...]) -> list[Any]:
        """The values of the fetches after one batch."""


def _name(fetch: Fetch) -> str:
    if isinstance(fetch, str):
        return fetch
    if isinstance(fetch, Schedule):
        return fetch.name
    return as_variable(fetch, "fetch_list").name


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


@contextmanager
def _turned(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Parameters that have a gradient for the time being have none, and the other way round."""
    for parameter in parameters:
        parameter.requires_grad_(not parameter.requires_grad)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(not parameter.requires_grad)


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


class TrainingRun(Run):
    """A program with an optimizer: every run is a batch through the engine."""

    def __init__(self, program: Program, training: Training, device: torch.device) -> None:
        plan = training.plan or lone_plan()
        _check_sole(program)
        super().__init__(program, plan, device)
        self._training = training
        self._outputs: list[tuple[Tensor, ...]] = []
        """What was computed, once for each micro-batch."""
        cuts = tuple(name for strategy in plan.strategies for name in strategy.cuts())
        staged = max(strategy.stages(plan) for strategy in plan.strategies) > 1
        own = spreads(plan)
        self.lowered = Lowered(program, cuts=cuts, by_device=staged, own=own, build=self._build)
        first = everything(program, training.loss) if own else self._first(program)
        self.lowered.choose(program, first, device=device)
        self._flags = training.flags(program)
        with self._only_trained():
            self.engine = self._make_engine(plan)
            fused = self._build.fused_update
            self.optimizer = training.bind(program, self.engine, fused=fused)
        self._pipeline = self.engine.job.mesh["pp"] if staged else None
        if own:
            names = set(training.trained)
            self._flags = [(p, name in names) for name, p in self.lowered.named_parameters()]
            _lay_out(program, self.engine)

    def _make_engine(self, plan: Plan) -> Engine:
        if self._training.distributed:
            if self.device != roles.device():
                raise ProgramError(
                    f"the executor computes on {self.device}, but fleet.init() gave this worker "
                    f"{roles.device()}; make it with static.Executor(), which takes that."
                )
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
        self._outputs.append(outputs)
        loss: Tensor = outputs[0]
        return loss

    def _only_trained(self) -> AbstractContextManager[Any]:
        """Gradients for what moves; other programs may train other parts of the parameters."""
        changed = [p for p, trained in self._flags if p.requires_grad is not trained]
        return _turned(changed) if changed else torch.enable_grad()

    @override
    def _provided(self, program: Program) -> set[str]:
        found = self._training.provided(program)
        if program.state.spread is not None:
            found |= program.state.persistent().keys() - program.names.keys()
        return found

    @override
    def _first(self, program: Program) -> tuple[fx.Node, ...]:
        return (program.node(self._training.loss),)

    @override
    def _once(self, program: Program, form: Form, feeds: tuple[Any, ...]) -> list[Any]:
        self.lowered.choose(program, form.nodes, device=self.device)
        self._outputs = []
        with self._only_trained():
            values = self._step(feeds, form.provided)
        values |= zip(form.computed, self._results(form), strict=True)
        if program.state.spread is not None:
            program.state.spread.moved()
            values |= self._kept(set(form.provided) - values.keys())
        return [values[name] for name in form.names]

    def _results(self, form: Form) -> Sequence[Any]:
        """The fetches of all micro-batches, on all workers of a pipeline."""
        found, self._outputs = self._outputs, []
        if len(found) == 1 and self._pipeline is None:
            return found[0][1:]
        pairs = zip(form.nodes[1:], list(zip(*found, strict=True))[1:], strict=False)
        made = tuple(joined(parts, node) for node, parts in pairs)
        if self._pipeline is None or not form.computed:
            return made
        group, last = self._pipeline.get_group(), self._pipeline.size() - 1
        shown: tuple[Tensor, ...] = spread_over(made, source=last, group=group, device=self.device)
        return shown

    def _step(self, feeds: tuple[Any, ...], provided: Sequence[str]) -> dict[str, Any]:
        """One batch; between backward and update the gradients can be seen."""
        engine, training = self.engine, self._training
        assert engine.step is not None
        training.tick(self.optimizer)
        found: dict[str, Any] = {}
        if training.rate_name in provided:
            found[training.rate_name] = training.rate(self.optimizer)
        engine.begin()
        loss = engine.step.drive(engine.step, ((feeds,), ()))
        if gradients := [name for name in provided if name.endswith(GRADIENT)]:
            found |= self._gradients(gradients)
        engine.finish(loss)
        if not engine.holding:
            self.optimizer.zero_grad()
        return found

    def _gradients(self, names: Sequence[str]) -> dict[str, Tensor]:
        held = dict(self.lowered.named_parameters())
        own = {name: held.get(name.removesuffix(GRADIENT)) for name in names}
        given = {n: p.grad for n, p in own.items() if p is not None and p.grad is not None}
        found = {n: g.detach().clone() for n, g in whole(self.engine, given)}
        assert found.keys() == set(names), f"{set(names) - found.keys()} have no gradient"
        return found

    def _kept(self, names: Collection[str]) -> dict[str, Tensor]:
        """Parameters and buffers as they are after the update."""
        own = {n: value for n, value in self.lowered.state_dict().items() if n in names}
        return dict(whole(self.engine, own)) if names else {}


def _check_sole(program: Program) -> None:
    if program.state.spread is not None:
        raise ProgramError(
            "another program trains these parameters already and has spread them over workers, "
            "where no second optimizer finds them; train both with one loss, or without "
            "strategies that spread parameters."
        )


def _lay_out(program: Program, engine: Engine) -> None:
    """Let the program know that workers hold parts of its values."""
    program.state.spread = Spread(program.state, engine)
    for initial in program.layers.values():
        initial.state = program.state
