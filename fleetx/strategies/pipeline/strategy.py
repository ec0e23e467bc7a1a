"""Pipeline: consecutive layers live on different ranks, and a batch flows through in parts."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from fleetx.comm.replicas import start_equal
from fleetx.graph.meta import said
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job, arguments
from fleetx.plan.option import AtLeast, OneOf
from fleetx.plan.step import Drive, Driven, Step, largest_over
from fleetx.plan.strategy import Plan, Strategy
from fleetx.roles.subgroups import carries
from fleetx.torch_internals import tree_leaves, tree_map

if TYPE_CHECKING:
    from fleetx.graph.part import Part
    from fleetx.strategies.pipeline.accepted_inputs import Accepted
    from fleetx.strategies.pipeline.stages import Stages
    from fleetx.strategies.pipeline.tied_weights import Homes

Count = Annotated[int, AtLeast(1)]
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

        def micro_batches(self, samples: int) -> int:
            """Into how many parts a batch of that many samples is cut."""
            size, count = self.micro_batch_size, self.accumulate_steps
            if count == 1:
                count = max(samples // size, 1)
            elif size == 1:
                size = samples // count
            if size * count != samples:
                raise PlanError(
                    f"a batch of {samples} samples cannot be cut into {count} micro-batches of "
                    f"{size} (pipeline_configs['accumulate_steps'] and ['micro_batch_size']), and "
                    "uneven ones would weigh samples differently. Give batches of "
                    f"{max(size, 1) * count} samples (drop_last=True drops a smaller last one), or "
                    "set micro_batch_size to a divisor of the batch."
                )
            return count

    config: Config
    _stages: "Stages | None" = None
    _homes: "Homes"
    _accepted: "Accepted"
    _armed = True

    @override
    def alone(self) -> str:
        return "micro-batches run one after the other"

    @override
    def rests(self) -> Mapping[str, str]:
        if self.config.schedule_mode != "zero-bubble":
            return {}
        from fleetx.strategies.pipeline.stage import SPLITS_BACKWARD  # loads torch's pipelining

        if SPLITS_BACKWARD:
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
        from fleetx.strategies.pipeline.accepted_inputs import Accepted
        from fleetx.strategies.pipeline.stages import Stages
        from fleetx.strategies.pipeline.tied_weights import Homes

        # All ranks begin with the weights of the first one, of which each then keeps its part.
        start_equal(model, job.mesh["pp"].get_group())
        group = job.mesh["pp"].get_group()
        sample = None if job.sample is None else _bound(model, job.sample)
        self._accepted = Accepted(model, sample)
        parts = _brought(model, job, self.config) or self._cut(model, job, sample)
        self._stages = Stages(
            model,
            parts,
            group=group,
            device=job.device,
            schedule=self.config.schedule_mode,
            shared=_is_shared(job),
        )
        held: list[list[Part]] = [[] for _ in range(job.size("pp"))]
        for found in parts.values():
            for number, part in enumerate(found):
                held[self._stages.owner(number)].append(part)
        self._homes = Homes(model, held, dist.get_rank(group))
        job.borrowed |= self._homes.borrowed
        job.elsewhere |= self._homes.forget_others()
        replace_forward(model, self._one_stage)
        return model

    def _cut(
        self, model: nn.Module, job: Job, sample: Mapping[str, Any] | None
    ) -> "Mapping[bool, Sequence[Part]]":
        """The parts that its forward falls into, where the options say or where costs are even."""
        from fleetx.strategies.pipeline import cutting

        wanted, given = job.size("pp") * self.config.chunks, self._accepted.given
        try:
            points = self.config.split or cutting.balanced(model, wanted, sample, job.device, given)
            found = cutting.parts_between(model, points, given)
        except ValueError as error:
            raise PlanError(f"strategy.pipeline = True cannot cut the model: {error}") from error
        job.opened |= {m for name, m in model.named_modules() if cutting.is_around(name, points)}
        return found

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
            return replace(step, drive=self._accumulate(job), evaluate=job.call)
        group, stages = job.mesh["pp"].get_group(), self._stages
        self._homes.meet(job.mesh)

        def sync(armed: bool) -> None:
            self._armed = armed
            step.sync(armed)

        def total(number: Tensor) -> Tensor:
            number = step.total(number).detach().clone()
            dist.all_reduce(number, group=group)
            return number

        return replace(
            step,
            drive=self._flow(job, stages),
            evaluate=self._flow_forward(job, stages),
            sync=sync,
            agree=largest_over(step.agree, group),
            total=total,
        )

    def _flow(self, job: Job, stages: "Stages") -> Drive:
        def flow(step: Step, batch: Any) -> Driven:
            inputs, targets = batch
            count, criterion = self.config.micro_batches(_samples(inputs)), _criterion(job)
            shares, due = _shares(targets, count), self._armed
            kept: list[Any] = []

            def scaled(outputs: Any, number: int) -> tuple[Tensor, Tensor]:
                loss = criterion(outputs, shares[number])
                if job.keep_outputs:
                    kept.append(outputs)
                return loss, step.scale(loss / count)

            loss = stages.train(
                self._inputs(job, inputs),
                count,
                scaled,
                before_backward=lambda last: step.sync(due and last),
            )
            if due:
                self._homes.add_up()
            return Driven(loss, kept)

        return flow if job.size("pp") == job.mesh.size() else _told_to_others(flow, job)

    def _flow_forward(self, job: Job, stages: "Stages") -> Callable[[Any], Any]:
        def evaluate(inputs: Any) -> Any:
            planned = self.config.accumulate_steps
            count = planned if _samples(inputs) % planned == 0 else 1
            return stages.evaluate(self._inputs(job, inputs), count)

        return evaluate

    def _inputs(self, job: Job, inputs: Any) -> dict[str, Any]:
        """The inputs of a batch by name, all of which the stages take."""
        found = _bound(job.model, inputs)
        self._accepted.check(found)
        return found

    def _accumulate(self, job: Job) -> Drive:
        """One rank alone: the same micro-batches, one after the other."""

        def drive(step: Step, batch: Any) -> Driven:
            inputs, targets = batch
            kept: list[Any] = []
            count = self.config.micro_batches(_samples(inputs))
            total = torch.zeros((), device=job.device)
            for share, wanted in zip(_shares(inputs, count), _shares(targets, count), strict=True):
                outputs = job.call(share)
                loss = _criterion(job)(outputs, wanted)
                step.scale(loss / count).backward()
                total += loss.detach() / count
                if job.keep_outputs:
                    kept.append(outputs)
            return Driven(total, kept)

        return drive

    @override
    def layout(self) -> Any:
        return self._homes.told() if self._stages is not None else None

    @override
    def batch(self) -> Mapping[str, int]:
        size, count = self.config.micro_batch_size, self.config.accumulate_steps
        return {"micro_batch": size} if count == 1 else {"micro_batches": count}

    @override
    def exchanges(
        self, known: tuple[Exchange, ...], parameter_bytes: int, mesh: Mapping[str, int]
    ) -> tuple[Exchange, ...]:
        if mesh["pp"] == 1:
            return known
        return (
            *known,
            Exchange(
                collective="send and receive",
                what="activations, and their gradients on the way back,",
                when="between neighbouring stages for every micro-batch",
                sent_bytes=0,
                decided_by=f"pp_degree = {mesh['pp']}",
            ),
        )

    @override
    def remarks(self) -> tuple[str, ...]:
        where = ", ".join(self.config.split) or "balanced costs"
        return (
            f"Stages are cut at {where} and run in the order {self.config.schedule_mode} "
            "(pipeline_configs).",
        )


def _told_to_others(flow: Drive, job: Job) -> Drive:
    """Let the pipelines that update with this one stop where it fails, on all its ranks."""

    def drive(step: Step, batch: Any) -> Driven:
        try:
            driven = flow(step, batch)
        except Exception:
            if not _is_shared(job):  # else others wait inside of the batch and cannot hear it
                job.anywhere(True)
            raise
        if job.anywhere(False):
            raise RuntimeError(
                "this batch failed in another pipeline, with which this one exchanges gradients, "
                "so all of them stop; the workers of that one say why."
            )
        return driven

    return drive


def _is_shared(job: Job) -> bool:
    """Whether several ranks compute one stage together and exchange within it."""
    return job.size("tp") * job.size("sharding") > 1


def _criterion(job: Job) -> Callable[[Any, Any], Tensor]:
    if job.criterion is None:
        raise PlanError(
            "strategy.pipeline = True computes the loss on its last stage, and no criterion is "
            "known; call fleet.distributed_model(model, criterion=...)."
        )
    return job.criterion


def _samples(inputs: Any) -> int:
    sizes = {leaf.shape[0] for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)}
    if len(sizes) != 1:
        raise PlanError(
            f"the inputs of a batch have {sorted(sizes)} samples, and a pipeline cuts all of them "
            "along their first dimension into micro-batches; give inputs of one length."
        )
    return int(next(iter(sizes)))


def _shares(tree: Any, count: int) -> list[Any]:
    """A batch in equal parts, in their order."""

    def part(number: int) -> Any:
        return tree_map(
            lambda leaf: leaf.chunk(count)[number] if isinstance(leaf, Tensor) else leaf, tree
        )

    return [part(number) for number in range(count)]


def _bound(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """The inputs by the names of the arguments of the model's own forward."""
    args, kwargs = arguments(model, inputs)
    signature = inspect.signature(type(model).forward)
    bound = signature.bind(model, *args, **kwargs).arguments
    return dict(list(bound.items())[1:])


def _brought(
    model: nn.Module, job: Job, config: "Pipeline.Config"
) -> "Mapping[bool, Sequence[Part]] | None":
    """The parts of a model that knows them itself; None for any other."""
    from fleetx.strategies.pipeline import parts

    if not (brought := said(model).get("parts")):
        return None
    wanted = job.size("pp") * config.chunks
    assert len(brought) == wanted, "whoever brings parts has asked how many stages there are"
    if config.split:
        raise PlanError(
            f"pipeline_configs['split'] = {list(config.split)} cuts a model by its submodules, "
            "and this program is cut already, by static.device_guard(); leave 'split' out."
        )
    return parts.Brought(said(model))
