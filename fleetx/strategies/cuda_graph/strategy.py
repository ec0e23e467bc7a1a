"""CUDA graph: a whole step runs as one piece, so that the GPU does not wait for the host."""

import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import prod
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.comm.local import local
from fleetx.graph.meta import said
from fleetx.graph.recording import Recorder, Recording
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.mesh import AXES
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.option import AtLeast
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share
from fleetx.plan.step import Driven, Step
from fleetx.plan.strategy import Plan, Strategy
from fleetx.plan.subject import Subject
from fleetx.roles.session import at_stop
from fleetx.roles.subgroups import carries, spare_group
from fleetx.strategies.cuda_graph.agreement import Agreement, Stage
from fleetx.torch_internals import TreeSpec, buffers_of, tree_flatten, tree_unflatten

logger = logging.getLogger(__name__)

_SERVERS = "it exchanges with servers through the host, which a replayed graph leaves out."
_CONFLICTS = {
    "a_sync": _SERVERS,
    "parameter_server": _SERVERS,
    "dgc": "how many numbers travel is decided by the host in each batch of its ramp-up.",
    "pipeline": "the host of each stage leads the micro-batches of a schedule, one by one.",
    "tensor_parallel": "the host seeds the random numbers of layers that it cuts.",
}


class CudaGraph(Strategy, name="cuda_graph"):
    """Captures forward, backward and update of each kind of batch, and replays them later on."""

    contract = Contract(
        phase=Phase.CAPTURE,
        touches=frozenset({"model", "optimizer", "sync", "drive", "ready", "unless", "update"}),
        conflicts=_CONFLICTS,
        tolerance=1e-4,
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """When a kind of batch is captured, and how many kinds are."""

        warmup: Annotated[int, AtLeast(1)] = 3
        """Batches of a kind that run as usual before it is captured."""
        max_graphs: Annotated[int, AtLeast(1)] = 8
        """Kinds of batches (shapes, and places in a group of merged ones) that are captured."""

    config: Config
    _recorder: Recorder | None = None

    @classmethod
    @override
    def alternatives(cls, subject: Subject, ranks: int) -> Sequence[Mapping[str, Any]]:
        return () if subject.device.type == "cpu" else ({},)

    @override
    def pace(self, pace: Pace, share: Share) -> Pace:
        return replace(pace, starts=0.0)

    @override
    def examine(self, plan: Plan) -> None:
        if prod(plan.mesh.values()) > 1 and plan.options["find_unused_parameters"]:
            raise PlanError(
                "strategy.cuda_graph = True cannot be in force with "
                "strategy.find_unused_parameters = True: workers tell each other in each batch "
                "which parameters it reached, and the host waits for the answer. Freeze what no "
                "batch reaches and set find_unused_parameters = False, or set strategy.cuda_graph "
                "= False."
            )

    @override
    def remarks(self) -> tuple[str, ...]:
        return (
            f"After {self.config.warmup} batches of a kind its whole step is one CUDA graph, for "
            f"at most {self.config.max_graphs} kinds (cuda_graph_configs).",
        )

    @override
    def laying_out(self, device: torch.device) -> AbstractContextManager[None]:
        """What keeps hold of how gradients are added up, as DDP does, remembers the stream, too."""
        return self._recorder_on(device).beside() if device.type == "cuda" else nullcontext()

    def _recorder_on(self, device: torch.device) -> Recorder:
        if self._recorder is None:
            self._recorder = Recorder(device)
        return self._recorder

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        if job.device.type != "cuda":
            raise PlanError(
                f"strategy.cuda_graph = True cannot be in force on a {job.device.type.upper()}: "
                "CUDA graphs are a feature of NVIDIA GPUs. Set strategy.cuda_graph = False here; "
                "strategy.compile works on every device."
            )
        if job.mesh.size() > 1 and not _card_to_card(job):
            raise PlanError(
                "strategy.cuda_graph = True cannot be in force here: workers exchange through the "
                "host (gloo), because not each of them has a card of its own or this torch has no "
                "NCCL. Start one worker for each card, or set strategy.cuda_graph = False."
            )
        return model

    @override
    def share(self, share: Share) -> Share:
        """Whoever compares plans shall not choose one that is refused later."""
        if share.rule is not None:
            _captured_form(share.rule.cls, spread=share.mesh["sharding"] > 1)
        return share

    @override
    def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
        options = _captured_form(spec.cls, spread=_is_spread(job.model))
        if not options:
            return spec
        groups = [replace(group, options={**group.options, **options}) for group in spec.groups]
        return replace(spec, defaults={**spec.defaults, **options}, groups=tuple(groups))

    @override
    def step(self, step: Step, job: Job) -> Step:
        group = spare_group("cuda_graph") if job.mesh.size() > 1 else None
        run = _Run(step, job, self.config, self._recorder_on(job.device), Agreement(group))
        if group is not None:
            _let_go_in_time(run)
        return replace(
            step,
            sync=run.sync,
            drive=run.drive,
            ready=run.ready,
            unless=run.unless,
            update=run.update,
        )


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
class _Run:
    """One job's step: as usual at first, then captured, then replayed."""

    step: Step
    job: Job
    config: CudaGraph.Config
    recorder: Recorder
    agreement: Agreement
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
        if decided is Stage.READY:
            kind.captured = self.job.together(partial(self._capture, whole, leaves, spec))
        assert kind.captured is not None
        self._moved = self._due
        loss, outputs = self._replay(kind.captured, leaves)
        return Driven(loss, outputs)

    def _stage(self, kind: _Kind | None) -> Stage:
        if kind is None or kind.runs < self.config.warmup:
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
        from fleetx.strategies.cuda_graph.captured import update_unless

        update_unless(flag, self._optimizer, update)
        return True

    def forget(self) -> None:
        """Let go of all recordings."""
        self.kinds.clear()
        self._open, self._places = None, []

    def _as_usual(self, whole: Step, batch: Any) -> Driven:
        last = self._open is not None and self._open.runs + 1 == self.config.warmup
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
        if len(self.kinds) < self.config.max_graphs:
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
                f"waits for the GPU or does what a graph cannot: {error.__context__ or error} Take "
                "item(), print() and branches on tensors out of model and criterion, or set "
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
        """Where everything lies that a recording writes and that others may replace."""
        held = chain(self._optimizer.state.values(), self._buffers)
        state = (v for values in held for v in values.values() if isinstance(v, Tensor))
        return [local(tensor).data_ptr() for tensor in chain(state, self._parameters)]


def _let_go_in_time(run: _Run) -> None:
    """Recordings hold the communicators of their exchanges, which are not ended before them."""
    held = weakref.ref(run)

    def forget() -> None:
        if (found := held()) is not None:
            found.forget()

    at_stop(forget)


def _captured_form(cls: type[Optimizer], *, spread: bool) -> Mapping[str, Any]:
    """The options under which an update can be captured."""
    from fleetx.strategies.cuda_graph.captured import waiting_for_nothing

    options = waiting_for_nothing(cls)
    if options is None:
        raise PlanError(
            f"strategy.cuda_graph captures the update, and {cls.__name__} has neither a fused nor "
            "a capturable form, so it may ask the GPU for numbers in between; use SGD, Adam or "
            "AdamW of torch.optim, strategy.lars or strategy.lamb."
        )
    if spread and options and "capturable" not in options:
        raise PlanError(
            f"strategy.cuda_graph captures the update, and the fused form of {cls.__name__} does "
            "not know tensors that are spread over workers; use Adam or AdamW of torch.optim, "
            "strategy.lars or strategy.lamb."
        )
    return options


def _is_spread(model: nn.Module) -> bool:
    return any(local(parameter) is not parameter for parameter in model.parameters())


def _card_to_card(job: Job) -> bool:
    """Whether workers exchange without the host."""
    return all(carries(job.mesh, axis, job.device) for axis in AXES if job.size(axis) > 1)


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
