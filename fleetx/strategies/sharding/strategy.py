"""Sharding: parameters, gradients and optimizer state are spread over ranks (ZeRO 1 to 3)."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor, nn
from typing_extensions import override

from fleetx.comm.held_gradients import records, sharded, waiting
from fleetx.comm.replicas import start_equal
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange
from fleetx.plan.job import Job
from fleetx.plan.option import Above, AtLeast, Below, OneOf, Unset
from fleetx.plan.pace import Pace
from fleetx.plan.pieces import size_of
from fleetx.plan.share import Share
from fleetx.plan.shared_numbers import refuse_shared_numbers
from fleetx.plan.shortened_rows import refuse_shortened_rows
from fleetx.plan.sparse_gradients import refuse_sparse_gradients
from fleetx.plan.step import Step, largest_over, with_equal_buffers
from fleetx.plan.strategy import Plan, Strategy
from fleetx.plan.subject import Subject
from fleetx.roles.subgroups import data_group
from fleetx.strategies.sharding.assigned_data import AssignedData
from fleetx.strategies.sharding.costs import spread, traffic, units_at_once
from fleetx.strategies.sharding.drawn_alike import refuse_drawn_alike, repeating
from fleetx.strategies.sharding.fully_sharded import shard, units_of
from fleetx.strategies.sharding.hidden_gradients import HiddenGradients, uncovered
from fleetx.strategies.sharding.reached_parameters import checked
from fleetx.strategies.sharding.units import Unit

logger = logging.getLogger(__name__)
Count = Annotated[int, AtLeast(1)]
Segmentation = Annotated[str, OneOf(("segment_broadcast_MB", "segment_anchors"))]

_IDLE = {
    "optimize_cast": "weights keep 32 bits between steps, and amp casts them at use",
    "enable_tuning": "there is nothing to tune",
    "use_calc_stream": "torch overlaps communication on streams of its own",
}
"""Option of old files -> why it has no effect here."""
_PARTED = (
    "strategy.sharding = True cuts each into parts of its own, which would learn by themselves"
)


class Sharding(Strategy, name="sharding"):
    """On torch's fully_shard: each rank keeps a share and gathers what a layer needs."""

    contract = Contract(
        phase=Phase.CARRIER,
        touches=frozenset({"model", "due", "sync", "ready", "resume", "agree", "update", "settle"}),
        provides=frozenset({"carrier", "gradient_exchange"}),
        reads=frozenset({"find_unused_parameters"}),
        tolerance=1e-5,
        axis="sharding",
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """How much is spread, over how many ranks, and in which units it travels."""

        sharding_segment_strategy: Segmentation = "segment_broadcast_MB"
        """By what the model is cut into units: by their size, or by names."""
        segment_broadcast_MB: Annotated[float, Above(0)] = 32.0
        """A unit is closed as soon as its parameters have this size."""
        segment_anchors: tuple[str, ...] = ()
        """Names or patterns of submodules; each ends a unit."""
        sharding_degree: Annotated[int, Unset(-1), AtLeast(1)] = -1
        """Ranks that share one copy of everything; what the other degrees leave if unset."""
        mp_degree: Count = 1
        """Ranks along which ``tensor_parallel`` cuts layers."""
        dp_degree: Count = 1
        """Copies of the sharded model."""
        hybrid_dp: bool = False
        """Old: insists on more than one copy of the sharded model."""
        gradient_merge_acc_step: Count = 1
        """Batches per update: ``gradient_merge`` with this ``k_steps``."""
        optimize_offload: bool = False
        """Optimizer state waits on the host and comes to the device for the update."""
        pp_allreduce_in_optimize: bool = False
        """With a pipeline: reduce gradients once per batch, not after every micro-batch."""
        pp_degree: Count = 1
        """Stages of ``pipeline``."""
        optimize_cast: bool = False
        """Refused: see amp."""
        stage: Annotated[int, AtLeast(1), Below(4)] = 3
        """1: optimizer state is spread; 2: gradients, too; 3: parameters, too."""
        enable_tuning: bool = False
        """Refused: there is nothing to tune."""
        use_calc_stream: bool = False
        """Refused: torch chooses its streams."""

        @override
        def consistent(self) -> None:
            for name, reason in _IDLE.items():
                if getattr(self, name):
                    raise ValueError(
                        f"{self.spelled(name)} = True cannot be in force: {reason}. Set it to "
                        "False."
                    )
            if self.segment_anchors and self.segment_broadcast_MB != 32.0:
                raise ValueError(
                    f"sharding_configs['segment_broadcast_MB'] = {self.segment_broadcast_MB:g} "
                    "cuts the model by size and 'segment_anchors' by names, and it is cut once; "
                    "leave one of them out."
                )
            by_name = self.sharding_segment_strategy == "segment_anchors"
            if by_name and not self.segment_anchors:
                raise ValueError(
                    "sharding_configs['sharding_segment_strategy'] = 'segment_anchors' without "
                    "'segment_anchors' would leave the model in one piece; name submodules that "
                    "end a unit, such as ['layers.3', 'layers.7']."
                )

    config: Config
    _units: tuple[Unit, ...] = ()
    _hidden: HiddenGradients | None = None
    _repeating: Collection[str] = ()

    @property
    def units(self) -> list[list[str]]:
        """The names of the modules in each unit; what is left travels with the model itself."""
        return [unit.names for unit in self._units]

    @override
    def alone(self) -> str:
        return "optimizer state waits on the host" if self.config.optimize_offload else ""

    @override
    def cuts(self) -> tuple[str, ...]:
        return self.config.segment_anchors

    @override
    def examine(self, plan: Plan) -> None:
        degree, workers = plan.mesh["sharding"], 1
        for size in plan.mesh.values():
            workers *= size
        if self.config.hybrid_dp and plan.mesh["dp"] == 1 and workers > 1:
            raise PlanError(
                "sharding_configs['hybrid_dp'] = True asks for several copies of the sharded "
                f"model, and the {workers} workers hold one. Set "
                f"sharding_configs['sharding_degree'] below {degree}, or hybrid_dp = False."
            )
        if self.config.pp_allreduce_in_optimize and plan.mesh["pp"] == 1 and workers > 1:
            raise PlanError(
                "sharding_configs['pp_allreduce_in_optimize'] = True speaks of a pipeline's "
                "micro-batches, and there is no pipeline. Set strategy.pipeline = True with a "
                "pp_degree above 1, or leave it False."
            )

        self._examine_capture({strategy.contract.phase for strategy in plan.strategies}, workers)

    def _examine_capture(self, phases: set[Phase], workers: int) -> None:
        if Phase.CAPTURE not in phases:
            return
        if self.config.optimize_offload:
            raise PlanError(
                "sharding_configs['optimize_offload'] = True lets the host move the optimizer's "
                "state in each update, which a captured step cannot wait for. Set optimize_offload "
                "= False, or strategy.cuda_graph = False."
            )
        if self._waits and Phase.CADENCE in phases and workers > 1:
            raise PlanError(
                f"sharding_configs['stage'] = {self.config.stage} lets whole gradients wait for "
                "the end of a group of batches where a captured step does not find them. Set "
                "sharding_configs['stage'] = 2 or 3, or strategy.cuda_graph = False."
            )

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        config = self.config
        units = units_of(
            model,
            (job.elsewhere, job.opened),
            config.segment_anchors,
            config.segment_broadcast_MB,
            job.whole,
        )
        if job.size("dp") * job.size("sharding") == 1:
            return job.place(model)
        refuse_shortened_rows(
            model, "strategy.sharding = True gathers weights for a forward, and keeps none of that"
        )
        refuse_sparse_gradients(model, "strategy.sharding = True cuts whole ones into parts")
        refuse_shared_numbers(dict(model.named_parameters()), _PARTED)
        start_equal(model, data_group(job.mesh))
        self._repeating = repeating(model, job.size("sharding"))
        shard(model, units, job, again=config.stage == 3)
        self._units = tuple(units)
        if config.stage < 3:
            self._hidden = HiddenGradients(model)
        AssignedData(model)
        return model

    @override
    def step(self, step: Step, job: Job) -> Step:
        self._job = job
        if self.config.optimize_offload:
            step = _offloaded(step, job)
        if job.size("dp") * job.size("sharding") == 1:
            return step
        group = data_group(job.mesh)

        def sync(armed: bool) -> None:
            step.sync(armed)
            job.model.set_requires_gradient_sync(armed)  # type: ignore[operator]

        step = refuse_drawn_alike(step, job, self._repeating)
        if self._hidden is not None:
            step = uncovered(step, self._hidden)
        return replace(
            checked(with_equal_buffers(step, job.model, group), job, group),
            sync=sync if self._waits else step.sync,
            agree=largest_over(step.agree, group),
            settle=_settled(step, job),
        )

    @property
    def _waits(self) -> bool:
        """Whether whole gradients wait for the end of a group, where they are kept whole."""
        return self.config.stage == 1 or self.config.pp_allreduce_in_optimize

    @override
    def state_dict(self) -> dict[str, Any]:
        """Whole gradients that wait for the end of their group; parts of them wait in ``.grad``."""
        held = {name: waiting(record) for name, record in records(self._job.model)}
        kept = {name: value.detach().clone() for name, value in held.items() if value is not None}
        return {"gradients": kept} if kept else {}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not self._waits:
            raise ValueError(
                "the checkpoint was written inside a group of batches whose gradients wait in one "
                f"piece, and sharding_configs['stage'] = {self.config.stage} keeps parts of them; "
                "set stage and pp_allreduce_in_optimize as they were, or load a checkpoint from "
                "the end of a group."
            )
        for name, record in records(self._job.model):
            if name in state["gradients"]:
                record.unsharded_accumulated_grad = state["gradients"][name].to(self._job.device)

    @classmethod
    @override
    def alternatives(cls, subject: Subject, ranks: int) -> Sequence[Mapping[str, Any]]:
        stages = tuple({"stage": stage} for stage in (1, 2, 3))
        if subject.device.type == "cpu":
            return stages
        return (*stages, {"stage": 3, "optimize_offload": True})

    @override
    def pace(self, pace: Pace, share: Share) -> Pace:
        if share.mesh["dp"] * share.mesh["sharding"] > 1:
            pace = self._spread_pace(pace, share)
        if not share.state_on_host:
            return pace
        return replace(pace, to_host=pace.to_host + 2 * size_of(share.held))

    def _spread_pace(self, pace: Pace, share: Share) -> Pace:
        """FSDP copies units into what it sends and out of what it gets, begins and ends them."""
        trained = sum(1 for piece in share.held.values() if piece.trained)
        forwards, config = share.run.batches * share.run.micro_batches, self.config
        units = self._gathered_at_once(share)
        gathered = size_of(share.parameters) * forwards * (2 if config.stage == 3 else 1)
        scattered = size_of(share.gradients) * share.mesh["sharding"]
        return replace(
            pace.with_chores(
                sharding_unit=units * forwards,
                sharding_parameter=len(share.parameters) * forwards,
            ),
            dispatched_updates=trained,
            whole_gradients=self._waits,
            copied=pace.copied + 2 * (gathered + scattered * (1 if self._waits else forwards)),
        )

    @override
    def share(self, share: Share) -> Share:
        if self.config.optimize_offload and share.subject.device.type != "cpu":
            share = replace(share, state_on_host=True)
        if share.mesh["dp"] * share.mesh["sharding"] == 1:
            return share
        config = self.config
        return spread(
            share,
            entries=config.segment_anchors,
            megabytes=config.segment_broadcast_MB,
            stage=config.stage,
            waits=self._waits,
        )

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        config, units = self.config, self._gathered_at_once(share)
        own = traffic(share, stage=config.stage, at_updates=self._waits, units=units)
        return (*known, *own)

    def _gathered_at_once(self, share: Share) -> int:
        """How many units the parameters of a rank make."""
        config = self.config
        return units_at_once(share, config.segment_anchors, config.segment_broadcast_MB)

    @override
    def remarks(self) -> tuple[str, ...]:
        spread = {
            1: "Optimizer state is",
            2: "Gradients and optimizer state are",
            3: "Parameters, gradients and optimizer state are",
        }[self.config.stage]
        return (f"{spread} spread over the axis sharding (sharding_configs).",)


def _settled(step: Step, job: Job) -> Callable[[Tensor | None], None]:
    def settle(loss: Tensor | None) -> None:
        step.settle(loss)
        # A forward without gradients, between backward and update, leaves old weights gathered.
        for module in sharded(job.model):
            module.reshard()

    return settle


def _offloaded(step: Step, job: Job) -> Step:
    """Optimizer state is on the host in every forward, also after a checkpoint brought it back."""
    from fleetx.strategies.sharding.state_offload import OffloadedState

    if job.device.type == "cpu":
        # Seen by everybody and said by one.
        level = logging.WARNING if job.mesh.get_rank() == 0 else logging.DEBUG
        logger.log(
            level,
            "At rest: sharding_configs['optimize_offload'], because optimizer state that is "
            "updated on a CPU is on the host already.",
        )
        return step
    assert job.optimizer is not None
    state = OffloadedState(job.optimizer)

    def sync(armed: bool) -> None:
        step.sync(armed)
        state.send()

    return replace(step, sync=sync)
