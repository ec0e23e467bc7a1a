"""Sharding: parameters, gradients and optimizer state are spread over ranks (ZeRO 1 to 3)."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from fleetx.comm.held_gradients import records, sharded, waiting
from fleetx.comm.reached import Reached
from fleetx.comm.replicas import copy_from_first_rank, start_equal
from fleetx.graph.meta import said
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.option import Above, AtLeast, Below, OneOf, Unset
from fleetx.plan.step import Step, largest_over
from fleetx.plan.strategy import Plan, Strategy
from fleetx.roles.subgroups import data_group
from fleetx.strategies.sharding.failures import weights_read
from fleetx.strategies.sharding.same_missing import same_on_all
from fleetx.strategies.sharding.units import Unit, by_anchors, by_size, without_shared

logger = logging.getLogger(__name__)
Count = Annotated[int, AtLeast(1)]
Segmentation = Annotated[str, OneOf(("segment_broadcast_MB", "segment_anchors"))]

_IDLE = {
    "optimize_cast": "weights keep 32 bits between steps, and amp casts them at use",
    "enable_tuning": "there is nothing to tune",
    "use_calc_stream": "torch overlaps communication on streams of its own",
}
"""Option of old files -> why it has no effect here."""
_UNUSED = (
    "the last batch gave no gradient to {}, and where workers reach different parameters, sharding "
    "would add gradients of one to those of another; freeze what no batch reaches, or set "
    "strategy.find_unused_parameters = True, which compares in each update whether all workers "
    "leave out the same parameters."
)
_UNGATHERED = (
    "the forward reads weights ({}) without calling the submodule that has them, and under "
    "sharding_configs['stage'] = 3 weights are gathered only while their submodule runs; call the "
    "submodule instead, or set sharding_configs['stage'] = 2, which keeps what a forward has "
    "gathered until the backward."
)
_DIFFERENT = (
    "this worker's last batch left out {}, and those of other workers left out others, so sharding "
    "added gradients of one parameter to those of another; let all workers reach the same "
    "parameters (compute both branches and multiply one by 0), or set strategy.sharding = False, "
    "because data parallel can do this with strategy.find_unused_parameters = True."
)


class Sharding(Strategy, name="sharding"):
    """On torch's fully_shard: each rank keeps a share and gathers what a layer needs."""

    contract = Contract(
        phase=Phase.CARRIER,
        touches=frozenset({"model", "due", "sync", "agree", "update", "settle"}),
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

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        units = without_shared(self._cut(model, job))
        if job.size("dp") * job.size("sharding") == 1:
            return model.to(job.device)
        # Loaded here: FSDP takes a second that jobs without sharding do not pay.
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        start_equal(model, data_group(job.mesh))
        common: dict[str, Any] = {
            "mesh": _mesh(job),
            "reshard_after_forward": self.config.stage == 3,
        }

        def policy(parameters: Iterable[Tensor]) -> Any:
            narrow = all(p.dtype == torch.float32 for p in parameters)
            return MixedPrecisionPolicy(reduce_dtype=job.wire if narrow else None)

        for unit in units:
            held = [p for module in unit.modules for p in module.parameters()]
            fully_shard(unit.modules, mp_policy=policy(held), **common)
        # In a program, what lies in a unit has a place of its own beside it.
        done = {p for unit in units for module in unit.modules for p in module.parameters()}
        rest = policy(p for p in model.parameters() if p not in done)
        fully_shard(model, mp_policy=rest, ignored_params=done, **common)
        left = [name for name, p in model.named_parameters() if not _is_spread(p)]
        assert not left, f"{left} would be neither spread nor exchanged"
        self._units = tuple(units)
        if self.config.stage == 3:
            replace_forward(model, partial(_explained, model))
        return model

    def _cut(self, model: nn.Module, job: Job) -> list[Unit]:
        calls, named = said(model).get("calls"), said(model).get("segments", {})
        anchors = [
            name for entry in self.config.segment_anchors for name in _named(model, entry, named)
        ]
        if anchors:
            return by_anchors(model, anchors, job.elsewhere, job.opened, calls)
        limit = self.config.segment_broadcast_MB * 2**20
        return by_size(model, limit, job.elsewhere, job.opened, calls)

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

        return replace(
            _checked(step, job, group),
            sync=sync if self._waits else step.sync,
            agree=largest_over(step.agree, group),
            settle=_settled(step, job, group),
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

    @override
    def exchanges(
        self, known: tuple[Exchange, ...], parameter_bytes: int, mesh: Mapping[str, int]
    ) -> tuple[Exchange, ...]:
        ranks, copies = mesh["sharding"], mesh["dp"]
        if ranks == 1:
            return known
        here = parameter_bytes // (mesh["pp"] * mesh["tp"])
        part = (ranks - 1) * here // ranks
        stage = f"sharding_configs['stage'] = {self.config.stage}"
        again = self.config.stage == 3
        gathered = Exchange(
            collective="all-gather",
            what="parameters",
            when="in each forward and again in each backward" if again else "in each forward",
            sent_bytes=part * (2 if again else 1),
            decided_by=stage,
        )
        scattered = Exchange(
            collective="reduce-scatter",
            what="gradients",
            when="in the backward of each update" if self._waits else "in each backward",
            sent_bytes=part,
            wide_bytes=part,
            decided_by=stage,
        )
        share = 2 * (copies - 1) * here // (ranks * copies)
        summed = Exchange(
            collective="all-reduce",
            what="each rank's share of the gradients",
            when=scattered.when,
            sent_bytes=share,
            wide_bytes=share,
            decided_by=f"dp_degree = {copies}",
        )
        return (*known, gathered, scattered, *((summed,) if copies > 1 else ()))

    @override
    def remarks(self) -> tuple[str, ...]:
        spread = {
            1: "Optimizer state is",
            2: "Gradients and optimizer state are",
            3: "Parameters, gradients and optimizer state are",
        }[self.config.stage]
        return (f"{spread} spread over the axis sharding (sharding_configs).",)


def _is_spread(parameter: Any) -> bool:
    mesh = getattr(parameter, "device_mesh", None)
    return mesh is not None and "sharding" in (mesh.mesh_dim_names or ())


def _mesh(job: Job) -> DeviceMesh:
    """Shard along one axis, replicate along the other where there is one."""
    return job.mesh["dp", "sharding"] if job.size("dp") > 1 else job.mesh["sharding"]


def _explained(model: nn.Module, forward: Forward) -> Forward:
    """Say what is wrong where a forward reads weights of a submodule that it does not call."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except RuntimeError as error:
            if "mixed torch.Tensor and DTensor" not in str(error):
                raise
            raise PlanError(_UNGATHERED.format(weights_read(model, error))) from error

    return run


def _checked(step: Step, job: Job, group: dist.ProcessGroup) -> Step:
    """Refuse gradients of batches that reached other parameters on other ranks.

    What a unit exchanges is the gradients that it has, one after the other, so one rank's gradient
    of one parameter would be added to another rank's of the next.
    """
    reached = Reached(job.model.parameters(), frozen=True)  # one may be thawed later
    trouble = partial(_trouble, reached, job, group)
    noted = ""

    def check() -> None:
        nonlocal noted
        noted = noted or trouble()
        told, noted = job.hindrance(noted), ""
        if told:
            raise PlanError(told)

    def due() -> bool:
        nonlocal noted
        if reached and job.size("pp") > 1:  # a stage may have been reached that others were not
            noted = noted or trouble()
        elif reached:  # by a batch that ended without an update
            check()
        return step.due()

    def update() -> bool:
        check()
        return step.update()

    return replace(step, due=due, update=update)


def _trouble(reached: Reached, job: Job, group: dist.ProcessGroup) -> str:
    """What is wrong with the parameters that batches since the last look have left out."""
    missing, may_miss = reached.missing(), job.option("find_unused_parameters", bool)
    reached.forget()
    told = ", ".join(_names(job.model, missing[:3])) if missing else "nothing"
    if missing and not may_miss:
        return _UNUSED.format(told)
    if may_miss and not same_on_all(reached, missing, group, job.device):
        return _DIFFERENT.format(told)
    return ""


def _names(model: nn.Module, parameters: Sequence[Tensor]) -> list[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [repr(names[id(parameter)]) for parameter in parameters]


def _settled(step: Step, job: Job, group: dist.ProcessGroup) -> Callable[[Tensor | None], None]:
    stateful = next(job.model.buffers(), None) is not None

    def settle(loss: Tensor | None) -> None:
        step.settle(loss)
        # A forward without gradients, between backward and update, leaves old weights gathered.
        for module in sharded(job.model):
            module.reshard()
        if stateful:
            copy_from_first_rank(job.model.buffers(), group)

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


def _named(model: nn.Module, entry: str, named: Mapping[str, str]) -> list[str]:
    """The paths of what an entry names: submodules, or in a program those of its cuts."""
    known = named or {name: name for name, _ in model.named_modules() if name}
    names = [entry] if entry in known else [name for name in known if fnmatchcase(name, entry)]
    found = [known[name] for name in names]
    if not found:
        message = f"sharding_configs['segment_anchors'] names {entry!r}, and the model has no such "
        raise PlanError(option.unknown(f"{message}submodule", entry, known))
    return found
