"""Deep gradient compression: only the largest entries of what waits to be sent travel."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn import Parameter
from torch.optim import SGD
from typing_extensions import override

from fleetx.comm.local import local
from fleetx.comm.reduction import flat
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange, Memory, ring_bytes
from fleetx.plan.job import Job
from fleetx.plan.optimizer_spec import Group, OptimizerSpec
from fleetx.plan.option import AtLeast, Below
from fleetx.plan.pieces import Piece, size_of
from fleetx.plan.share import Share
from fleetx.plan.step import Reduce, Step
from fleetx.plan.strategy import Plan, Strategy
from fleetx.strategies.dgc import sparse
from fleetx.strategies.dgc.momentum_correction import (
    Kept,
    Ledger,
    Rule,
    correct,
    local_gradient,
    moved_by,
)

SMALLEST = 16_384
"""Parameters with fewer elements than this travel whole."""
ENTRY_BYTES = 8
"""A place and a value."""

Factor = Callable[[], Tensor | None]


class DGC(Strategy, name="dgc"):
    """Sends the top share of each large gradient and keeps the rest for later.

    The strategy holds momentum and weight decay of the parameters that it compresses. What becomes
    of them in a backward is valid with the update only: one that is skipped leaves no trace.
    """

    contract = Contract(
        phase=Phase.CODEC,
        touches=frozenset({"optimizer", "reduce", "update"}),
        provides=frozenset({"rule"}),
        requires=frozenset({"buckets"}),
        partners=("dp",),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """When compression begins, and how strong it gets."""

        rampup_begin_step: Annotated[int, AtLeast(0)] = 0
        """Updates with whole gradients before compression begins."""
        rampup_step: Annotated[int, AtLeast(1)] = 1
        """Updates over which the levels of ``sparsity`` are spread."""
        sparsity: Annotated[tuple[float, ...], AtLeast(0), Below(1)] = (0.999,)
        """The part of a gradient that stays at home, level by level; the last one remains."""
        local_grad_clip_norm: Annotated[float, AtLeast(0)] = 0.0
        """Norm that each compressed gradient is held to before it is sent; 0 for no limit."""

        @override
        def consistent(self) -> None:
            if not self.sparsity:
                raise ValueError(
                    "dgc_configs['sparsity'] is empty, so nothing says how much of a gradient "
                    "travels; give at least one level, such as [0.999]."
                )

    own = frozenset({"u", "v"})
    config: Config
    _job: Job
    _ledger: Ledger

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._rules: dict[Tensor, Rule] = {}
        """What is compressed; every other parameter travels whole."""
        self._level: tuple[float, sparse.Tables] = (0.0, sparse.Tables())
        """A sparsity, and the tables that were made for it."""

    @override
    def examine(self, plan: Plan) -> None:
        _check_levels(self.config)
        if self.config.local_grad_clip_norm and plan.mesh["tp"] > 1:
            raise PlanError(
                "dgc_configs['local_grad_clip_norm'] limits the norm of whole gradients before "
                "they are sent, and tensor_parallel leaves parts of them on each rank. Set it to 0 "
                "and use strategy.clip, or set strategy.tensor_parallel = False."
            )

    @override
    def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
        for group in spec.groups:
            _refuse_other_rules(spec, group)
        self._job, self._ledger = job, Ledger(job.device)
        if job.size("dp") == 1:
            return spec  # nothing travels: the optimizer's own momentum is all there is to do
        large = {name: p for name, p in job.model.named_parameters() if _is_large(_part(p))}
        for group in spec.groups:
            rules = [_rule(name, large[name], group) for name in group.names if name in large]
            self._rules |= {rule.parameter: rule for rule in rules}
        if not any(job.of_all_stages(bool(self._rules))):
            raise PlanError(
                "strategy.dgc = True would compress nothing: no parameter of the optimizer is "
                f"float32 with at least {SMALLEST} elements, and all others travel whole. Set "
                "strategy.dgc = False."
            )
        groups = tuple(part for group in spec.groups for part in _split(group, large))
        return replace(spec, groups=groups)

    @override
    def step(self, step: Step, job: Job) -> Step:
        if job.size("dp") == 1:
            return step
        job.recordable.append(self._is_settled)
        one = torch.ones((), device=job.device)

        def factor() -> Tensor | None:
            """By what the loss was multiplied, which may change while velocities live on.

            The strategies before this one take it out of the gradients after the exchange. A mean
            over several batches comes later in the plan and is meant to stay.
            """
            scaled = step.scale(one)
            return None if scaled is one else scaled.float()

        @torch.no_grad()
        def update() -> bool:
            self._refuse_second_momentum(job)
            if self._warming_up:
                self._move_by_velocity()
            moved = step.update()
            self._ledger.close(self._rules.values(), moved, job.recorded)
            return moved

        return replace(step, reduce=self._reduction(step, job, factor), update=update)

    def _reduction(self, step: Step, job: Job, factor: Factor) -> Reduce:
        group = job.mesh["dp"].get_group()
        average, wire = flat(group, job.wire), job.wire or torch.float32

        @torch.no_grad()
        def reduce(bucket: GradBucket) -> Future[Tensor]:
            buffer, pieces = bucket.buffer(), _pieces(bucket)
            large = [(self._rules[p], at) for p, at in pieces if p in self._rules]
            if self._warming_up or not large:
                return average(buffer)
            scale = factor()
            velocity, waiting, sizes = self._grown(buffer, large, scale, job.size("dp"))
            tables = self._tables()
            where, values = sparse.take(velocity, waiting, sizes, tables, scale=scale, wire=wire)
            return sparse.exchange(
                buffer,
                sparse.placed(where, sizes, tuple(at.start for _, at in large), tables),
                values,
                sent=[at for _, at in large],
                others=[at for p, at in pieces if p not in self._rules],
                average=average,
                group=group,
            )

        return reduce

    def _grown(
        self, buffer: Tensor, large: list[tuple[Rule, slice]], factor: Tensor | None, workers: int
    ) -> tuple[Tensor, Tensor, sparse.Sizes]:
        """Velocities and waiting sums after one more local gradient, one tensor after the other."""
        sizes = sparse.sizes([at.stop - at.start for _, at in large], self._sparsity)
        velocities, waiting = (buffer.new_empty(sum(sizes.numbers)) for _ in range(2))
        parts = zip(velocities.split(sizes.numbers), waiting.split(sizes.numbers), strict=True)
        for (rule, at), (u, v) in zip(large, parts, strict=True):
            gradient = local_gradient(
                buffer[at],
                _flat(_part(rule.parameter)),
                factor=factor,
                limit=self.config.local_grad_clip_norm,
                workers=workers,
                decay=rule.decay,
            )
            old = Kept(*(_flat(kept) for kept in self._ledger.recall(rule)))
            correct(rule, old, gradient, velocity=u, waiting=v)
            like = _part(rule.parameter)
            self._ledger.enter(rule, _laid_out(u, like), _laid_out(v, like))
        return velocities, waiting, sizes

    def _move_by_velocity(self) -> None:
        """The warm-up: plain momentum, on means that arrived whole."""
        for rule in self._rules.values():
            if rule.parameter.grad is None:
                continue
            mean, weights = local(rule.parameter.grad), _part(rule.parameter)
            gradient = local_gradient(mean, weights, decay=rule.decay)
            old = self._ledger.recall(rule)
            velocity, move = moved_by(rule, old.velocity, gradient)
            self._ledger.enter(rule, velocity, old.waiting)
            mean.copy_(move)

    @property
    def _warming_up(self) -> bool:
        return self._ledger.updates < self.config.rampup_begin_step

    @property
    def _sparsity(self) -> float:
        levels, since = self.config.sparsity, self._ledger.updates - self.config.rampup_begin_step
        return levels[min(since * len(levels) // self.config.rampup_step, len(levels) - 1)]

    def _tables(self) -> sparse.Tables:
        """The tables of the level that is in force; those of others are let go of."""
        if self._level[0] != self._sparsity:
            self._level = self._sparsity, sparse.Tables()
        return self._level[1]

    def _is_settled(self) -> bool:
        """Whether the coming update sends as many entries as all later ones, as the last one did.

        Before that the host chooses another number now and then; and the first update with the
        last one makes tables, which stops the device.
        """
        config = self.config
        levels = len(config.sparsity)
        rise = -(-(levels - 1) * config.rampup_step // levels)  # updates, rounded up
        return self._ledger.updates > config.rampup_begin_step + rise

    def _refuse_second_momentum(self, job: Job) -> None:
        assert job.optimizer is not None
        for group in job.optimizer.param_groups:
            if group["momentum"] and not self._rules.keys().isdisjoint(group["params"]):
                raise RuntimeError(
                    f"the momentum of a compressed group was set to {group['momentum']}, but dgc "
                    "applies the momentum of these parameters before they travel, and it would "
                    "act twice; leave it at 0 (for schedulers: cycle_momentum=False), and load "
                    "only optimizer states that were saved under dgc."
                )

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        begin, level = self.config.rampup_begin_step, self.config.sparsity[-1]
        whole = [exchange for exchange in known if "gradients" in exchange.what]
        if not whole:
            return known
        others = tuple(exchange for exchange in known if exchange not in whole)
        first = replace(
            whole[0],
            when=f"during the backward of the first {begin} updates",
            decided_by=f"dgc_configs['rampup_begin_step'] = {begin}",
            times=0,
        )
        ranks, large = share.mesh["dp"], self._large_of(share).values()
        entries = sum(sparse.share(piece.numbers, level) for piece in large)
        few = Exchange(
            collective="all-gather",
            what="values and places of the largest entries",
            when="during the backward of each later update" if begin else whole[0].when,
            sent_bytes=(ranks - 1) * entries * ENTRY_BYTES,
            wide_bytes=(ranks - 1) * entries * 4,
            moved_bytes=ranks * entries * ENTRY_BYTES,
            decided_by=f"dgc_configs['sparsity'] ends at {level}",
            axis="dp",
        )
        small = size_of(share.gradients) - sum(piece.size for piece in large)
        rest = replace(
            whole[0],
            what=f"gradients of fewer than {SMALLEST:,} numbers",
            sent_bytes=ring_bytes(small, ranks),
            wide_bytes=ring_bytes(small, ranks),
            moved_bytes=small,
        )
        later = (few, rest) if small else (few,)
        return (*others, first, *later) if begin else (*others, *later)

    @override
    def share(self, share: Share) -> Share:
        if share.mesh["dp"] == 1 or not (large := self._large_of(share)):
            return share
        if share.rule is not None:
            groups = (part for group in share.rule.groups for part in _split(group, large))
            share = replace(share, rule=replace(share.rule, groups=tuple(groups)))
        kept = Memory(
            what="velocities and what was not sent yet",
            kept_bytes=2 * sum(piece.size for piece in large.values()),
            decided_by="dgc = True",
        )
        return share.with_memory(kept)

    def _large_of(self, share: Share) -> dict[str, Piece]:
        return {
            name: piece
            for name, piece in share.gradients.items()
            if piece.numbers >= SMALLEST and piece.dtype == torch.float32
        }

    @override
    def state_dict(self) -> dict[str, Any]:
        """The count of updates, and this rank's own velocities ``u`` and waiting sums ``v``."""
        return self._ledger.state_dict() if self._rules else {}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ledger.load_state_dict(state, self._rules.values())
        self._job.replaced += 1


def _check_levels(config: DGC.Config) -> None:
    levels, updates = len(config.sparsity), config.rampup_step
    if levels == 1 and updates > 1:
        raise PlanError(
            f"dgc_configs['rampup_step'] = {updates} spreads the levels of dgc_configs['sparsity'] "
            "over that many updates, and there is one level, so it has no effect. Give several "
            "levels, such as [0.75, 0.9375, 0.984375, 0.996, 0.999], or leave rampup_step at 1."
        )
    if updates < levels - 1:
        raise PlanError(
            f"dgc_configs['rampup_step'] = {updates} has no room for the {levels} levels of "
            "dgc_configs['sparsity'], so that some of them would never be used. Set rampup_step to "
            f"{levels} or more, or give fewer levels."
        )


def _is_large(parameter: Tensor) -> bool:
    # DDP lays a dense parameter out in a bucket in the order of memory, which we rely on.
    dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    return parameter.numel() >= SMALLEST and parameter.dtype == torch.float32 and dense


def _part(parameter: Tensor) -> Tensor:
    """What lies on this rank of a parameter that may be cut over ranks."""
    return local(parameter.detach())


def _flat(tensor: Tensor) -> Tensor:
    """The elements in the order of memory, as they lie in a bucket."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _laid_out(flat: Tensor, like: Tensor) -> Tensor:
    return flat.as_strided(like.shape, like.stride())


def _pieces(bucket: GradBucket) -> list[tuple[Tensor, slice]]:
    """The parameters of a bucket, and where their gradients lie in its buffer."""
    pieces, base = [], bucket.buffer().storage_offset()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        start = gradient.storage_offset() - base
        pieces.append((parameter, slice(start, start + gradient.numel())))
    return pieces


def _rule(name: str, parameter: Parameter, group: Group) -> Rule:
    options = group.options
    # To maximise, the optimizer turns the sign of what it gets; decay must still shrink.
    decay = -options["weight_decay"] if options["maximize"] else options["weight_decay"]
    return Rule(name, parameter, options["momentum"], options["nesterov"], decay)


def _split(group: Group, large: Collection[str]) -> list[Group]:
    """The group without its large parameters, and these with nothing left to do but to move."""
    bare = {**group.options, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False}
    parts = [
        Group(names=tuple(n for n in group.names if n not in large), options=group.options),
        Group(names=tuple(n for n in group.names if n in large), options=bare),
    ]
    return [part for part in parts if part.names]


def _refuse_other_rules(spec: OptimizerSpec, group: Group) -> None:
    if spec.cls is not SGD or group.options["momentum"] <= 0:
        momentum = f"(momentum={group.options['momentum']})" if spec.cls is SGD else ""
        raise PlanError(
            f"strategy.dgc = True with {spec.cls.__name__}{momentum} cannot be in force: dgc "
            "corrects the momentum of gradients that are sent late. Use torch.optim.SGD with "
            "momentum above 0, such as 0.9, or set strategy.dgc = False."
        )
    if group.options["dampening"]:
        raise PlanError(
            f"strategy.dgc = True with SGD(dampening={group.options['dampening']}) cannot be in "
            "force: the correction of momentum is defined without dampening. Set dampening=0."
        )
