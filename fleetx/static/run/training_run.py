"""A run of training: a batch of a program through the engine."""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch import optim as torch_optim
from typing_extensions import override

from fleetx import roles
from fleetx.api import session
from fleetx.api.weights import whole
from fleetx.engine.engine import Engine
from fleetx.plan.contract import Phase
from fleetx.plan.step import Driven
from fleetx.plan.strategy import Plan
from fleetx.record.error import ProgramError
from fleetx.record.recording_state import paused
from fleetx.roles.messages import broadcast_tree
from fleetx.static.lower.lowered import Lowered
from fleetx.static.record.backward import GRADIENT
from fleetx.static.record.program import Program
from fleetx.static.run.fetching import everything, joined
from fleetx.static.run.runs import Form, Run
from fleetx.static.run.single_worker import LoneMesh, lone_plan
from fleetx.static.run.spread import Spread, spreads
from fleetx.static.run.training import Training, training_of

_AS_IS = nullcontext()

_beginning = threading.RLock()


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


class TrainingRun(Run):
    """A program with an optimizer: every run is a batch through the engine."""

    def __init__(self, program: Program, training: Training, device: torch.device) -> None:
        plan = training.plan or lone_plan()
        _check_sole(program)
        super().__init__(program, plan, device)
        self._training = training
        staged, own = plan.stages() > 1, spreads(plan)
        self.lowered = Lowered(
            program, cuts=plan.cuts(), by_device=staged, own=own, build=self._build
        )
        self.lowered.choose(program, self._first(program), device=device)
        if own:
            self._look_ahead(program)
        self._flags = training.flags(program)
        with self._only_trained():
            self.engine = self._make_engine(plan)
            fused = self._build.fused_update
            self.optimizer = self._bind(program, fused=fused)
        self._pipeline = self.engine.job.mesh["pp"] if staged else None
        phases = [strategy.contract.phase for strategy in self.engine.plan.strategies]
        self._captured = Phase.CAPTURE in phases
        if own:
            names = set(training.trained)
            self._flags = [(p, name in names) for name, p in self.lowered.named_parameters()]
            _lay_out(program, self.engine)

    def _bind(self, program: Program, *, fused: bool) -> torch_optim.Optimizer:
        """Give the engine its optimizer; without exchange it is that of the origin."""
        origin = self._training.origin
        if origin is not None:
            return self.engine.attach(running(origin, self.engine.job.device).optimizer)
        return self._training.bind(program, self.engine, fused=fused)

    def _look_ahead(self, program: Program) -> None:
        """Let layouts know what any fetch may need, and which modules run in all runs."""
        always = self.lowered.meta["calls"]
        wide = everything(program, self._training.loss)
        self.lowered.choose(program, wide, device=self.device)
        calls = self.lowered.meta["calls"]
        self.lowered.meta["calls"] = {path: calls[path] and path in always for path in calls}

    def _make_engine(self, plan: Plan) -> Engine:
        if self._training.distributed:
            if self.device != roles.device():
                raise ProgramError(
                    f"the executor computes on {self.device}, but fleet.init() gave this worker "
                    f"{roles.device()}; make it with static.Executor(), which takes that."
                )
            return session.engine(plan, self.lowered, criterion=_loss_of, keep_outputs=True)
        return Engine(
            plan,
            self.lowered,
            device=self.device,
            mesh=LoneMesh(),
            criterion=_loss_of,
            keep_outputs=True,
        )

    def on(self, device: torch.device) -> "TrainingRun":
        """Itself, if it lives on that device."""
        if device != self.device:
            raise ProgramError(
                f"the program was trained on {self.device} and cannot go on on {device}, because "
                "its optimizer has state there; use one place for all executors that train it."
            )
        return self

    def _only_trained(self) -> AbstractContextManager[Any]:
        """Gradients for what moves; other programs may train other parts of the parameters."""
        changed = [p for p, trained in self._flags if p.requires_grad is not trained]
        if changed:
            return _turned(changed)
        return _AS_IS if torch.is_grad_enabled() else torch.enable_grad()

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
        outputs: list[Any] = []
        with self._only_trained():
            values = self._step(feeds, form.provided, outputs)
        values |= zip(form.computed, self._results(form, outputs), strict=True)
        if program.state.spread is not None:
            program.state.spread.moved()
            values |= self._kept(set(form.provided) - values.keys())
        return [values[name] for name in form.names]

    def _results(self, form: Form, found: Sequence[Any]) -> Sequence[Any]:
        """The fetches of all micro-batches, on all workers of a pipeline."""
        if len(found) == 1 and self._pipeline is None:
            return tuple(found[0][1:])
        pairs = zip(form.nodes[1:], list(zip(*found, strict=True))[1:], strict=False)
        made = tuple(joined(parts, node) for node, parts in pairs)
        if self._pipeline is None or not form.computed:
            return made
        group, last = self._pipeline.get_group(), self._pipeline.size() - 1
        shown: tuple[Tensor, ...] = broadcast_tree(
            made, source=last, group=group, device=self.device
        )
        return shown

    def _step(
        self, feeds: tuple[Any, ...], provided: Sequence[str], outputs: list[Any]
    ) -> dict[str, Any]:
        """One batch; between backward and update the gradients can be seen."""
        training = self._training
        training.tick(self.optimizer)
        found: dict[str, Any] = {}
        if training.rate_name in provided:
            found[training.rate_name] = training.rate(self.optimizer)
        gradients = [name for name in provided if name.endswith(GRADIENT)]
        if gradients and self._captured:
            raise ProgramError(
                f"{gradients[0]!r} cannot be fetched under strategy.cuda_graph = True: a captured "
                "step uses its gradients up before anybody sees them. Fetch something else, or set "
                "strategy.cuda_graph = False."
            )

        def before_update(driven: Driven) -> None:
            outputs.extend(driven.outputs)
            if gradients:
                found.update(self._gradients(gradients))

        self.engine.train_batch(((feeds,), ()), before_update=before_update)
        return found

    def _gradients(self, names: Sequence[str]) -> dict[str, Tensor]:
        held = dict(self.lowered.named_parameters())
        own = {name: held.get(name.removesuffix(GRADIENT)) for name in names}
        given = {n: _gradient(p) for n, p in own.items() if p is not None}
        found = {n: g.detach().clone() for n, g in whole(self.engine, given)}
        assert found.keys() == set(names), f"{set(names) - found.keys()} have no gradient"
        return found

    def _kept(self, names: Collection[str]) -> dict[str, Tensor]:
        """Parameters and buffers as they are after the update."""
        own = {n: value for n, value in self.lowered.state_dict().items() if n in names}
        return dict(whole(self.engine, own)) if names else {}


def begun(training: Training) -> TrainingRun | None:
    """The run of a training; None before its first one."""
    assert training.run is None or isinstance(training.run, TrainingRun)
    return training.run


def running(program: Program, device: torch.device) -> TrainingRun:
    """The run of a program that trains, begun if it has not."""
    training = training_of(program)
    assert training is not None
    with _beginning:
        run = begun(training)
        if run is None:
            with paused():
                run = training.run = TrainingRun(program, training, device)
                training.remember()
            for restore in training.at_start:
                restore()
            training.at_start.clear()
    return run


def _loss_of(outputs: Any, targets: Any) -> Tensor:
    """A program computes its own loss, the first of what it returns."""
    loss: Tensor = outputs[0]
    return loss


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Zero for a parameter that the loss reaches only through .detach()."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


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
