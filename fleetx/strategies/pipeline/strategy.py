"""Pipeline: consecutive layers live on different ranks, and a batch flows through in parts."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from fleetx.comm.replicas import start_equal
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.option import AtLeast, OneOf
from fleetx.plan.pace import Pace
from fleetx.plan.run import Run
from fleetx.plan.share import Share
from fleetx.plan.step import Step, largest_over
from fleetx.plan.strategy import Plan, Strategy
from fleetx.plan.subject import Subject
from fleetx.roles.subgroups import carries
from fleetx.strategies.pipeline.micro_batches import bound, micro_batches, one_after_the_other

if TYPE_CHECKING:
    from fleetx.strategies.pipeline.accepted_inputs import Accepted
    from fleetx.strategies.pipeline.costs import Costs
    from fleetx.strategies.pipeline.stages import Stages
    from fleetx.strategies.pipeline.tied_weights import Homes

logger = logging.getLogger(__name__)
Count = Annotated[int, AtLeast(1)]
_ONE_PIECE = (
    "pipeline_configs['schedule_mode'] = 'zero-bubble' computes gradients of activations first and "
    "those of weights later, and compiled code computes both in one piece; other schedules train."
)
SCHEDULES = ("1F1B", "F-then-B", "interleaved", "zero-bubble")


class Pipeline(Strategy, name="pipeline"):
    """On torch's pipelining: each rank keeps its stages of the model and forgets the others."""

    contract = Contract(
        phase=Phase.DRIVE,
        touches=frozenset({"model", "drive", "evaluate", "sync", "agree", "total"}),
        provides=frozenset({"drive"}),
        tolerance=1e-5,
        axis="pp",
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """Micro-batches, their order, and where the model is cut."""

        micro_batch_size: Count = 1
        """Samples in a micro-batch, unless ``accumulate_steps`` says how many there are."""
        accumulate_steps: Count = 1
        """Micro-batches in a batch; 1 derives it from ``micro_batch_size`` and the batch."""
        schedule_mode: Annotated[str, OneOf(SCHEDULES)] = "1F1B"
        """In which order forwards and backwards of micro-batches run."""
        p2p_cache_shape: bool = True
        """Shapes are learned once per shape of the batch; False is refused."""
        enable_partial_send_recv: bool = True
        """Accepted for old files, where it is True; False is refused."""
        split: tuple[str, ...] = ()
        """Names of submodules; each begins a stage. Empty: balanced by cost."""
        stages_per_rank: Count = 1
        """For the interleaved schedules: stages on each rank; 1 means 2 for "interleaved"."""

        @override
        def consistent(self) -> None:
            for name in ("p2p_cache_shape", "enable_partial_send_recv"):
                if not getattr(self, name):
                    raise ValueError(
                        f"{self.spelled(name)} = False cannot be in force: torch's pipelining "
                        "always works this way. Leave it True."
                    )
            if self.stages_per_rank > 1 and self.schedule_mode in {"1F1B", "F-then-B"}:
                raise ValueError(
                    f"pipeline_configs['stages_per_rank'] = {self.stages_per_rank} needs a "
                    f"schedule that interleaves, and 'schedule_mode' is {self.schedule_mode!r}; "
                    "set 'schedule_mode' to 'interleaved' or 'zero-bubble'."
                )

        @property
        def chunks(self) -> int:
            """Stages on each rank."""
            doubled = self.schedule_mode == "interleaved" and self.stages_per_rank == 1
            return 2 if doubled else self.stages_per_rank

        @property
        def splits(self) -> bool:
            """Whether gradients of weights are computed apart from those of activations."""
            if self.schedule_mode != "zero-bubble":
                return False
            from fleetx.strategies.pipeline.stage import SPLITS_BACKWARD  # loads torch's pipelining

            return SPLITS_BACKWARD

        def micro_batches(self, samples: int) -> int:
            """Into how many parts a batch of that many samples is cut."""
            return micro_batches(samples, self.micro_batch_size, self.accumulate_steps)

    config: Config

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.config.schedule_mode == "zero-bubble":
            self.contract = replace(type(self).contract, conflicts={"compile": _ONE_PIECE})

    _stages: "Stages | None" = None
    _homes: "Homes"
    _accepted: "Accepted"

    @override
    def alone(self) -> str:
        return "micro-batches run one after the other"

    @override
    def rests(self) -> Mapping[str, str]:
        if self.config.schedule_mode != "zero-bubble" or self.config.splits:
            return {}
        why = (
            f"torch {torch.__version__} gives wrong gradients to weights that a stage uses twice "
            "when it splits a backward, so each stays whole, with its bubbles; torch 2.13 splits it"
        )
        return {"pipeline_configs['schedule_mode'] = 'zero-bubble'": why}

    @override
    def stages(self, plan: Plan) -> int:
        return plan.mesh["pp"] * self.config.chunks if plan.mesh["pp"] > 1 else 1

    @override
    def examine(self, plan: Plan) -> None:
        ranks = plan.mesh["pp"]
        if self.config.schedule_mode == "zero-bubble" and plan.mesh["sharding"] > 1:
            raise PlanError(
                "pipeline_configs['schedule_mode'] = 'zero-bubble' computes gradients of weights "
                "long after those of activations, and sharded weights are not there any more. Set "
                "'schedule_mode' to '1F1B' or 'interleaved', or strategy.sharding = False."
            )
        stages = ranks * self.config.chunks
        if ranks > 1 and self.config.split and len(self.config.split) + 1 != stages:
            raise PlanError(
                f"pipeline_configs['split'] has {len(self.config.split)} names, which make "
                f"{len(self.config.split) + 1} stages, and pp_degree = {ranks} with "
                f"{self.config.chunks} on each rank needs {stages}. Give {stages - 1} names, or "
                "change pp_degree."
            )

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        if job.size("pp") == 1:
            return model
        if not carries(job.mesh, "pp", job.device):
            raise PlanError(
                "strategy.pipeline = True sends activations between cards, which takes NCCL, and "
                "NCCL takes a card for each worker. Start as many workers as there are cards "
                "(fleetrun --gpus 0,1), or train on the CPU (fleetrun --gpus none)."
            )
        # Loaded here: jobs without a pipeline do not need it.
        from fleetx.strategies.pipeline import cutting
        from fleetx.strategies.pipeline.accepted_inputs import Accepted
        from fleetx.strategies.pipeline.flow import is_shared
        from fleetx.strategies.pipeline.stages import Stages
        from fleetx.strategies.pipeline.tied_weights import Homes, parts_of_ranks

        # All ranks begin with the weights of the first one, of which each then keeps its part.
        start_equal(model, job.mesh["pp"].get_group())
        group = job.mesh["pp"].get_group()
        sample = None if job.sample is None else bound(model, job.sample)
        self._accepted = Accepted(model, sample)
        wanted, split = job.size("pp") * self.config.chunks, self.config.split
        cut = cutting.brought(model, wanted, split) or cutting.cut(
            model,
            wanted,
            split=split,
            accepted=self._accepted,
            device=job.device,
            agreed=partial(cutting.alike, device=job.device),
        )
        if cut.remark and job.mesh.get_rank() == 0:
            logger.warning(cut.remark)
        job.opened |= {model, *(model.get_submodule(name) for name in cut.opened)}
        self._stages = Stages(
            model,
            cut.parts,
            group=group,
            device=job.device,
            schedule=self.config.schedule_mode,
            shared=is_shared(job),
            translate=job.translated,
        )
        held = parts_of_ranks(cut, job.size("pp"))
        self._homes = Homes(model, held, dist.get_rank(group))
        job.borrowed |= self._homes.borrowed
        job.elsewhere |= self._homes.forget_others()
        replace_forward(model, self._one_stage)
        return model

    def _one_stage(self, forward: Forward) -> Forward:
        stages = self._stages
        assert stages is not None

        def run(*args: Any, **kwargs: Any) -> Any:
            if stages.running is None:
                raise PlanError(
                    "the model was called, but this rank holds only some stages of it; call "
                    "model.train_batch((inputs, targets)) to train and model.eval_batch(...) to "
                    "evaluate, on every rank."
                )
            return stages.run(*args, **kwargs)

        return run

    @override
    def step(self, step: Step, job: Job) -> Step:
        if self._stages is None:
            drive = one_after_the_other(job, self.config.micro_batches)
            return replace(step, drive=drive, evaluate=job.call)
        from fleetx.strategies.pipeline.flow import Flow

        group = job.mesh["pp"].get_group()
        self._homes.meet(job.mesh)
        counted, planned = self.config.micro_batches, self.config.accumulate_steps
        flow = Flow(job, self._stages, self._homes, self._accepted, counted)

        def sync(armed: bool) -> None:
            flow.armed = armed
            step.sync(armed)

        def total(number: Tensor) -> Tensor:
            number = step.total(number).detach().clone()
            dist.all_reduce(number, group=group)
            return number

        return replace(
            step,
            drive=flow.drive(),
            evaluate=lambda inputs: flow.evaluate(inputs, planned),
            sync=sync,
            agree=largest_over(step.agree, group),
            total=total,
        )

    @override
    def layout(self) -> Any:
        return self._homes.told() if self._stages is not None else None

    @override
    def batch(self) -> Mapping[str, int]:
        size, count = self.config.micro_batch_size, self.config.accumulate_steps
        return {"micro_batch": size} if count == 1 else {"micro_batches": count}

    @override
    def running(self, run: Run, subject: Subject, mesh: Mapping[str, int]) -> Run:
        if subject.model is None or subject.sample is None:
            return run
        count = self.config.micro_batches(subject.samples())
        run = replace(run, micro_batches=count)
        if mesh["pp"] == 1:
            return run
        return self._costs(subject, mesh["pp"]).running(run)

    @classmethod
    @override
    def alternatives(cls, subject: Subject, ranks: int) -> Sequence[Mapping[str, Any]]:
        return tuple({"accumulate_steps": ranks * times} for times in (1, 2, 4, 8, 16))

    @override
    def pace(self, pace: Pace, share: Share) -> Pace:
        ranks, count = share.mesh["pp"], share.run.micro_batches
        # Zero-bubble fills most of what 1F1B leaves with gradients of weights, which nobody
        # waits for: about a third of the work. What is left is not measured.
        left = 1 / 3 if self.config.splits else 1.0
        pace = replace(pace, idle=pace.idle + left * (ranks - 1) / (count * self.config.chunks))
        if ranks == 1:
            return pace
        batches = share.run.batches
        return pace.with_chores(
            pipeline_batch=batches, pipeline_micro_batch=batches * count * self.config.chunks
        )

    @override
    def share(self, share: Share) -> Share:
        if share.mesh["pp"] == 1 or share.subject.model is None:
            return share
        return self._costs(share.subject, share.mesh["pp"]).share(share)

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        if (ranks := share.mesh["pp"]) == 1:
            return known
        decided = f"pp_degree = {ranks}"
        if share.trace is not None:
            return (*known, *self._costs(share.subject, ranks).exchanges(share, decided))
        unknown = Exchange(
            collective="send and receive",
            what="activations, and their gradients on the way back,",
            when="between neighbouring stages for every micro-batch",
            sent_bytes=0,
            times=None,
            decided_by=decided,
            axis="pp",
        )
        return (*known, unknown)

    def _costs(self, subject: Subject, ranks: int) -> "Costs":
        """What is known of the model in parts; it is cut once."""
        from fleetx.strategies.pipeline.costs import Costs

        key = "pipeline", self.config, ranks
        if key not in subject.kept:
            subject.kept[key] = Costs(subject, ranks, self.config)
        found: Costs = subject.kept[key]
        return found

    @override
    def remarks(self) -> tuple[str, ...]:
        where = ", ".join(self.config.split) or "balanced costs"
        return (
            f"Stages are cut at {where} and run in the order {self.config.schedule_mode} "
            "(pipeline_configs).",
        )
