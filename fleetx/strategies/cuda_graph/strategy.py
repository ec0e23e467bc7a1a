"""CUDA graph: a whole step runs as one piece, so that the GPU does not wait for the host."""

import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any

import torch
from torch import nn
from typing_extensions import override

from fleetx.comm.local import local
from fleetx.graph.recording import Recorder
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Memory
from fleetx.plan.job import Job
from fleetx.plan.mesh import AXES
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.option import AtLeast
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share
from fleetx.plan.step import Step
from fleetx.plan.strategy import Plan, Strategy
from fleetx.plan.subject import Subject
from fleetx.roles.session import at_stop
from fleetx.roles.subgroups import carries, spare_group
from fleetx.strategies.cuda_graph.agreement import Agreement
from fleetx.strategies.cuda_graph.captured import captured_form
from fleetx.strategies.cuda_graph.run import Run

_SERVERS = "it exchanges with servers through the host, which a replayed graph leaves out."
_CONFLICTS = {
    "a_sync": _SERVERS,
    "parameter_server": _SERVERS,
    "pipeline": "the host of each stage leads the micro-batches of a schedule, one by one.",
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
        share = share.with_memory(
            Memory(
                what="batch, where the captured step reads it",
                kept_bytes=share.batch_bytes,
                decided_by="cuda_graph",
            )
        )
        if share.rule is None:
            return share
        spread = share.mesh["sharding"] * share.mesh["tp"] > 1
        return replace(share, rule=_captured(share.rule, spread=spread))

    @override
    def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
        return _captured(spec, spread=_is_spread(job.model))

    @override
    def step(self, step: Step, job: Job) -> Step:
        group = spare_group("cuda_graph") if job.mesh.size() > 1 else None
        run = Run(
            step,
            job,
            self._recorder_on(job.device),
            Agreement(group),
            warmup=self.config.warmup,
            most=self.config.max_graphs,
        )
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


def _let_go_in_time(run: Run) -> None:
    """Recordings hold the communicators of their exchanges, which are not ended before them."""
    held = weakref.ref(run)

    def forget() -> None:
        if (found := held()) is not None:
            found.forget()

    at_stop(forget)


def _captured(spec: OptimizerSpec, *, spread: bool) -> OptimizerSpec:
    """The optimizer in a form that waits for nothing."""
    if not (options := captured_form(spec.cls, spread=spread)):
        return spec
    groups = [replace(group, options={**group.options, **options}) for group in spec.groups]
    return replace(spec, defaults={**spec.defaults, **options}, groups=tuple(groups))


def _is_spread(model: nn.Module) -> bool:
    return any(local(parameter) is not parameter for parameter in model.parameters())


def _card_to_card(job: Job) -> bool:
    """Whether workers exchange without the host."""
    return all(carries(job.mesh, axis, job.device) for axis in AXES if job.size(axis) > 1)
