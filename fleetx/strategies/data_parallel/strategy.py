"""Data parallel: every rank holds the whole model, and gradients are averaged during backward."""

from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from fleetx.comm.replicas import copy_from_first_rank, start_equal
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange, ring_bytes
from fleetx.plan.forward import replace_forward
from fleetx.plan.job import Job
from fleetx.plan.pace import Pace
from fleetx.plan.pieces import size_of
from fleetx.plan.share import Share, statistics
from fleetx.plan.shortened_rows import refuse_shortened_rows
from fleetx.plan.step import Step, largest_over, with_equal_buffers
from fleetx.plan.strategy import Plan, Strategy
from fleetx.strategies.data_parallel.assigned_gradients import refuse_shares
from fleetx.strategies.data_parallel.backwards import Backwards
from fleetx.strategies.data_parallel.late_exchange import THAWED, after_backward
from fleetx.strategies.data_parallel.option_checks import examine_options
from fleetx.strategies.data_parallel.replica import during_backward, replicate, with_gradients


class DataParallel(Strategy, name="data_parallel"):
    """The carrier of a job that asks for no other; it has no switch."""

    internal = True
    contract = Contract(
        phase=Phase.CARRIER,
        touches=frozenset({"model", "sync", "reduce", "ready", "agree", "update"}),
        provides=frozenset({"carrier", "gradient_exchange", "buckets"}),
        partners=("dp",),
        reads=frozenset(
            {
                "find_unused_parameters",
                "fuse_all_reduce_ops",
                "fuse_grad_size_in_MB",
                "hierarchical_allreduce_inter_nranks",
                "nccl_comm_num",
                "use_hierarchical_allreduce",
            }
        ),
    )
    _replica: DistributedDataParallel | None = None
    _backwards: Backwards | None = None

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        job.place(model)
        if job.size("dp") == 1:
            return model
        refuse_shortened_rows(model, "workers have other batches, and their weights would part")
        if job.size("pp") * job.size("tp") > 1:
            # DDP knows neither tensors that are spread over ranks nor the order of a pipeline.
            start_equal(model, job.mesh["dp"].get_group())
            return model
        if not any(p.requires_grad for p in model.parameters()):
            # DDP, which else does this, refuses a model without gradients.
            start_equal(model, job.mesh["dp"].get_group())
            return model
        copy_from_first_rank(model.buffers(), job.mesh["dp"].get_group())
        self._replica = replica = replicate(model, job)
        self._backwards = Backwards(replica, [p for p in model.parameters() if p.requires_grad])
        replace_forward(model, partial(with_gradients, replica, self._backwards))
        job.recordable.append(self._backwards.recordable)
        return model

    @override
    def examine(self, plan: Plan) -> None:
        if plan.mesh["dp"] > 1:
            examine_options(plan, others=[s for s in plan.strategies if s is not self])

    @override
    def step(self, step: Step, job: Job) -> Step:
        if job.size("dp") == 1 or not any(p.requires_grad for p in job.model.parameters()):
            return step
        group, parameters = job.mesh["dp"].get_group(), list(job.model.parameters())
        trained = [p.requires_grad for p in parameters]

        def thawed() -> bool:
            now = [p.requires_grad for p in parameters]
            return now != trained and any(now)  # who freezes all for a while exchanges nothing

        def sync(armed: bool) -> None:
            step.sync(armed)
            if thawed():
                raise PlanError(THAWED)

        common = with_equal_buffers(step, job.model, group)
        common = replace(common, agree=largest_over(step.agree, group))
        if self._replica is None or self._backwards is None:
            return after_backward(common, job, thawed)
        common = refuse_shares(replace(common, sync=sync), job.model, job.mesh.get_rank())
        return during_backward(common, job, self._replica, self._backwards)

    @override
    def at_update(self, job: Job) -> tuple[str, ...]:
        """Nothing in the plain case: DDP exchanges during backward, whoever steps."""
        if job.size("dp") == 1:
            return ()
        if job.size("pp") * job.size("tp") > 1:
            return ("the exchange of gradients between workers",)
        usual = {"nccl_comm_num": 1, "use_hierarchical_allreduce": False}
        return tuple(f"strategy.{name}" for name in usual if job.options[name] != usual[name])

    @override
    def pace(self, pace: Pace, share: Share) -> Pace:
        if share.mesh["dp"] == 1:
            return pace
        # What a backward makes is copied into buckets, where it stays until the update.
        copied = pace.copied + 2 * size_of(share.gradients)
        return replace(
            pace.with_chores(data_parallel_parameter=len(share.gradients)), copied=copied
        )

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        ranks = share.mesh["dp"]
        if ranks == 1:
            return known
        pieces = share.gradients.values()
        ring = ring_bytes(size_of(share.gradients), ranks)
        wide = sum(piece.size for piece in pieces if piece.dtype == torch.float32)
        gradients = Exchange(
            collective="all-reduce",
            what="gradients",
            when="during the backward of each update",
            sent_bytes=ring,
            wide_bytes=ring_bytes(wide, ranks),
            moved_bytes=size_of(share.gradients),
            axis="dp",
            beside=share.mesh["pp"] * share.mesh["tp"] == 1,
        )
        return (*known, gradients, *statistics(share, "dp"))
