"""The steps of one job: as usual at first, then recorded, then replayed."""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from fleetx.comm.local import local
from fleetx.graph.meta import said
from fleetx.graph.recording import Recorder, Recording, broke_off
from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.recorded import Recorded
from fleetx.plan.step import Driven, Step
from fleetx.strategies.cuda_graph.agreement import Agreement, Stage
from fleetx.strategies.cuda_graph.captured import update_unless
from fleetx.torch_internals import TreeSpec, buffers_of, tree_flatten, tree_unflatten

logger = logging.getLogger(__name__)


@dataclass
class _Kind:
    """Batches that ask the same of the device."""

    runs: int = 0
    """How many ran as usual."""
    captured: "_Captured | None" = None


@dataclass(frozen=True)
class _Captured:
    """A recorded step and what it reads and leaves."""

    recording: Recording
    inputs: list[Any]
    """Where it looks for the batch."""
    before: list[Tensor | None]
    """Where it looks for gradients of earlier batches."""
    after: list[Tensor | None]
    """Where it leaves gradients for later ones; empty when it ends in an update."""


@dataclass
class Run:
    """One job's step: as usual at first, then captured, then replayed."""

    step: Step
    job: Job
    recorder: Recorder
    agreement: Agreement
    warmup: int
    """Batches of a kind that run as usual before it is captured."""
    most: int
    """Kinds that are captured."""
    kinds: dict[Hashable, _Kind] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.job.optimizer is not None
        self._optimizer = self.job.optimizer
        self._parameters = list(self.job.model.parameters())
        self._modules = list(self.job.model.modules())
        self._buffers = [buffers_of(module) for module in self._modules]
        self._rates = [torch.zeros((), device=self.job.device) for _ in self._groups]
        self._known = [0.0 for _ in self._groups]
        """What the rates on the device are."""
        self._places: list[int] = []
        self._due = self._driven = self._moved = self._full = False
        self._open: _Kind | None = None

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    def sync(self, armed: bool) -> None:
        """Learn whether the coming batch ends in an update."""
        self.step.sync(armed)
        self._due, self._driven, self._moved = armed, False, False

    def drive(self, whole: Step, batch: Any) -> Driven:
        """Run a batch; with its update, if it is captured."""
        self._driven = True
        if self._places and self._places != self._look():
            logger.info("cuda_graph: parameters or state lie elsewhere now; capturing anew")
            self.forget()
        leaves, spec = tree_flatten(batch)
        key = self._key(leaves, spec)
        kind = self._open = self._kind(key)
        decided = self.agreement.decided(key, self._stage(kind))
        if kind is None or decided is Stage.USUAL:
            return self._as_usual(whole, batch)
        with ExitStack() as host:
            for around in self.job.around_recorded:
                host.enter_context(around())
            if decided is Stage.READY:
                kind.captured = self.job.together(partial(self._capture, whole, leaves, spec))
            assert kind.captured is not None
            self._moved = self._due
            loss, outputs = self._replay(kind.captured, leaves)
        return Driven(loss, outputs)

    def _stage(self, kind: _Kind | None) -> Stage:
        if kind is None or kind.runs < self.warmup:
            return Stage.USUAL
        if kind.captured is not None:
            return Stage.CAPTURED
        return Stage.READY if all(may() for may in self.job.recordable) else Stage.USUAL

    def ready(self, due: bool) -> bool:
        """Show gradients, unless the captured step has used them already."""
        if self._moved:
            return True
        with self.recorder.beside():
            return self.step.ready(due)

    def update(self) -> bool:
        """Move the parameters, unless the captured step has done so."""
        if not self._driven:
            raise PlanError(
                "strategy.cuda_graph = True captures the whole step, and optimizer.minimize(loss) "
                "shows it the end of one only; call fleet.distributed_model(model, criterion=...) "
                "and train with model.train_batch((inputs, targets)), or set strategy.cuda_graph = "
                "False."
            )
        if self._moved:
            return True
        with self.recorder.beside():
            moved = self.step.update()
        # An update that was skipped has not made the optimizer's state yet.
        if self._open is not None and moved:
            self._open.runs += 1
        return moved

    def unless(self, flag: Tensor, update: Callable[[], bool]) -> bool:
        """Skip an update; while recording, the device alone decides."""
        if not self.recorder.active:
            return self.step.unless(flag, update)
        if self.job.recorded is not None:
            self.job.recorded.undone = flag
        update_unless(flag, self._optimizer, update)
        return True

    def forget(self) -> None:
        """Let go of all recordings."""
        self.kinds.clear()
        self._open, self._places = None, []

    def _as_usual(self, whole: Step, batch: Any) -> Driven:
        last = self._open is not None and self._open.runs + 1 == self.warmup
        with self.recorder.rehearsal() if last else self.recorder.beside():
            driven = self.step.drive(whole, batch)
        if self._open is not None and not self._due:
            self._open.runs += 1
        return driven

    def _key(self, leaves: list[Any], spec: TreeSpec) -> Hashable:
        """What a recording of a batch takes for granted."""
        return (
            self._due,
            said(self.job.model).get("returns"),
            repr(spec),
            *map(_token, leaves),
            *[parameter.requires_grad for parameter in self._parameters],
            *[parameter.grad is None for parameter in self._parameters],
            *[module.training for module in self._modules],
            *map(_options, self._groups),
        )

    def _kind(self, key: Hashable) -> _Kind | None:
        """The kind of a batch; None for one more than may be captured."""
        if key in self.kinds:
            return self.kinds[key]
        if len(self.kinds) < self.most:
            return self.kinds.setdefault(key, _Kind())
        if not self._full:
            logger.warning(
                "cuda_graph: %d kinds of batches are known, and those of another kind (another "
                "shape, another option of the optimizer) run uncaptured; give batches one shape, "
                "or raise cuda_graph_configs['max_graphs']",
                len(self.kinds),
            )
        self._full = True
        return None

    def _capture(self, whole: Step, leaves: list[Any], spec: TreeSpec) -> _Captured:
        inputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        batch = tree_unflatten(inputs, spec)
        before = [parameter.grad for parameter in self._parameters]

        def work() -> tuple[Tensor, Sequence[Any]]:
            with self._being_recorded():
                driven = self.step.drive(whole, batch)
                if self._due:
                    self.step.ready(True)
                    with self._rates_on_device():
                        self.step.update()
            return driven.loss, driven.outputs

        recording = self._recorded(work)
        after = [] if self._due else [parameter.grad for parameter in self._parameters]
        self._set_gradients(before)
        self._places = self._look()
        shapes = [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)]
        logger.info(
            "cuda_graph: captured the step of batches %s%s",
            shapes,
            "" if self._due else " (merged)",
        )
        return _Captured(recording, inputs, before, after)

    @contextmanager
    def _being_recorded(self) -> Iterator[None]:
        """Strategies learn that the host will not run this step again."""
        self.job.recorded = Recorded()
        try:
            yield
        finally:
            self.job.recorded = None

    @contextmanager
    def _rates_on_device(self) -> Iterator[None]:
        """Learning rates where a recording finds what schedules made of them since."""
        usual = [group["lr"] for group in self._groups]
        for group, rate in zip(self._groups, self._rates, strict=True):
            group["lr"] = rate
        try:
            yield
        finally:
            for group, lr in zip(self._groups, usual, strict=True):
                group["lr"] = lr

    def _recorded(self, work: Callable[[], Any]) -> Recording:
        try:
            return self.recorder.record(work)
        except RuntimeError as error:
            raise PlanError(
                "strategy.cuda_graph = True could not capture the step, because something in it "
                f"waits for the GPU or does what a graph cannot: {broke_off(error)}. Take item(), "
                "print(), branches on tensors and torch.tensor(number, device=...) out of model "
                "and criterion (torch.full makes the same without the host), or set "
                "strategy.cuda_graph = False."
            ) from error

    def _replay(self, captured: _Captured, leaves: list[Any]) -> tuple[Tensor, Sequence[Any]]:
        for mine, given in zip(captured.inputs, leaves, strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(given, non_blocking=True)
        for held, parameter in zip(captured.before, self._parameters, strict=True):
            if held is not None and parameter.grad is not held:
                assert parameter.grad is not None
                parameter.grad = held.copy_(parameter.grad)
        for at, group in enumerate(self._groups):
            if (lr := float(group["lr"])) != self._known[at]:
                self._rates[at].fill_(lr)
                self._known[at] = lr
        loss, outputs = captured.recording.replay()
        self._set_gradients(captured.after)
        return loss, outputs

    def _set_gradients(self, gradients: list[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=False):
            parameter.grad = gradient

    def _look(self) -> list[int]:
        """Where everything lies that a recording writes and that others may replace.

        And how often a strategy has replaced something of its own.
        """
        held = chain(self._optimizer.state.values(), self._buffers)
        state = (v for values in held for v in values.values() if isinstance(v, Tensor))
        places = [local(tensor).data_ptr() for tensor in chain(state, self._parameters)]
        return [self.job.replaced, *places]


def _token(leaf: Any) -> Hashable:
    """What a recording takes for granted about one part of a batch."""
    if isinstance(leaf, Tensor):
        # Each worker has a card of another number.
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device.type
    return type(leaf).__name__, repr(leaf)


def _options(group: dict[str, Any]) -> Hashable:
    """The options of a group that are numbers inside of a recording; its rate is not."""
    free = {"params", "lr", "initial_lr", "max_lr", "min_lr"}
    # Sorted: their order may come from a set of names, which each process orders in its own way.
    return tuple((name, repr(group[name])) for name in sorted(group) if name not in free)
