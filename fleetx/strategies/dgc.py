"""Deep gradient compression: only the largest entries of what waits to be sent travel."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn import Parameter
from torch.optim import SGD
from typing_extensions import override

from fleetx.comm import sparse
from fleetx.comm.reduction import flat
from fleetx.optim.momentum_correction import corrected, local_gradient, velocity
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange, Memory
from fleetx.plan.job import Job
from fleetx.plan.optimizer_spec import Group, OptimizerSpec
from fleetx.plan.option import AtLeast, Below
from fleetx.plan.step import Reduce, Step
from fleetx.plan.strategy import Strategy

logger = logging.getLogger(__name__)

SMALLEST = 16_384
"""Parameters with fewer elements than this travel whole."""

Factor = Callable[[], Tensor | None]


class _Large(NamedTuple):
    """A parameter that is compressed, and what its group of the user's optimizer does with it."""

    name: str
    parameter: Parameter
    momentum: float
    nesterov: bool
    decay: float


class _Kept(NamedTuple):
    """What this rank keeps of a parameter, laid out like it."""

    velocity: Tensor
    waiting: Tensor
    """What was not sent yet."""


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

    config: Config

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._updates = 0
        self._large: dict[Tensor, _Large] = {}
        self._memory: dict[str, _Kept] = {}
        self._pending: dict[str, _Kept] = {}
        """What becomes the memory when the update is made."""

    @override
    def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
        for group in spec.groups:
            _refuse_other_rules(spec, group)
        if job.size("dp") == 1:
            return spec  # nothing travels: the optimizer's own momentum is all there is to do
        large = {name: p for name, p in job.model.named_parameters() if _is_large(p)}
        for group in spec.groups:
            taken = [_described(name, large[name], group) for name in group.names if name in large]
            self._large |= {one.parameter: one for one in taken}
        if not self._large:
            logger.warning(
                "strategy.dgc = True compresses nothing: no parameter of the optimizer is float32 "
                "with at least %d elements, and all others travel whole.",
                SMALLEST,
            )
        groups = tuple(part for group in spec.groups for part in _split(group, large))
        return replace(spec, groups=groups)

    @override
    def step(self, step: Step, job: Job) -> Step:
        if job.size("dp") == 1:
            return step
        one = torch.ones((), device=job.device)

        def factor() -> Tensor | None:
            """By what the loss was multiplied, which may change while velocities live on.

            The strategies before this one take it out of the gradients again. A mean over several
            batches comes later in the plan and is meant to stay.
            """
            scaled = step.scale(one)
            return None if scaled is one else scaled.float()

        @torch.no_grad()
        def update() -> bool:
            self._refuse_second_momentum(job)
            if self._warming_up:
                self._move_by_velocity(factor())
            moved = step.update()
            if moved:
                self._commit()
            self._pending = {}
            return moved

        return replace(step, reduce=self._reduction(step, job, factor), update=update)

    def _reduction(self, step: Step, job: Job, factor: Factor) -> Reduce:
        group, size = job.mesh["dp"].get_group(), job.size("dp")
        average, wire = flat(group, step.wire), step.wire or torch.float32

        @torch.no_grad()
        def reduce(bucket: GradBucket) -> Future[Tensor]:
            buffer, pieces = bucket.buffer(), _pieces(bucket)
            large = [(self._large[p], at) for p, at in pieces if p in self._large]
            if self._warming_up or not large:
                return average(buffer)
            send = partial(self._sent, workers=size, factor=factor(), wire=wire)
            sent = [send(one, buffer, at) for one, at in large]
            others = [at for p, at in pieces if p not in self._large]
            return sparse.exchange(buffer, sent, others, average, group)

        return reduce

    def _sent(
        self,
        large: _Large,
        buffer: Tensor,
        at: slice,
        *,
        workers: int,
        factor: Tensor | None,
        wire: torch.dtype,
    ) -> sparse.Sent:
        """Add a local gradient to what waits, and take out what is sent of it."""
        if large.name in self._pending:
            raise RuntimeError(
                "gradients were exchanged twice before one update, and dgc would count the first "
                "ones again; call optimizer.step() after every exchanged backward, add up losses "
                "before it, or use gradient_merge for several batches per update."
            )
        gradient = local_gradient(
            buffer[at],
            _flat(large.parameter.detach()),
            factor=factor,
            limit=self.config.local_grad_clip_norm,
            workers=workers,
            decay=large.decay,
        )
        old = self._recalled(large)
        new, waiting = corrected(
            _flat(old.velocity), _flat(old.waiting), gradient, large.momentum, large.nesterov
        )
        wanted = sparse.share(waiting.numel(), self._sparsity)
        where, values = sparse.take(new, waiting, wanted, scale=factor, wire=wire)
        like = large.parameter.shape, large.parameter.stride()
        self._pending[large.name] = _Kept(new.as_strided(*like), waiting.as_strided(*like))
        return sparse.Sent(at, where, values)

    def _move_by_velocity(self, factor: Tensor | None) -> None:
        """The warm-up: plain momentum, on means that arrived whole."""
        for large in self._large.values():
            if (mean := large.parameter.grad) is None:
                continue
            gradient = local_gradient(
                mean, large.parameter, factor=factor, limit=0, workers=1, decay=large.decay
            )
            old = self._recalled(large)
            new, seen = velocity(old.velocity, gradient, large.momentum, large.nesterov)
            self._pending[large.name] = _Kept(new, old.waiting)
            mean.copy_(seen if factor is None else seen * factor)

    @property
    def _warming_up(self) -> bool:
        return self._updates < self.config.rampup_begin_step

    @property
    def _sparsity(self) -> float:
        levels, since = self.config.sparsity, self._updates - self.config.rampup_begin_step
        return levels[min(since * len(levels) // self.config.rampup_step, len(levels) - 1)]

    def _recalled(self, large: _Large) -> _Kept:
        if large.name not in self._memory:
            zeros = [torch.zeros_like(large.parameter.detach()) for _ in _Kept._fields]
            self._memory[large.name] = _Kept(*zeros)
        return self._memory[large.name]

    def _commit(self) -> None:
        # DDP leaves the gradient of a parameter alone that no rank used: nothing was applied.
        used = {one.name for one in self._large.values() if one.parameter.grad is not None}
        self._memory |= {name: new for name, new in self._pending.items() if name in used}
        self._updates += 1

    def _refuse_second_momentum(self, job: Job) -> None:
        assert job.optimizer is not None
        for group in job.optimizer.param_groups:
            if group["momentum"] and not self._large.keys().isdisjoint(group["params"]):
                raise RuntimeError(
                    f"the momentum of a compressed group was set to {group['momentum']}, but dgc "
                    "applies the momentum of these parameters before they travel, and it would "
                    "act twice; leave it at 0 (for schedulers: cycle_momentum=False), and load "
                    "only optimizer states that were saved under dgc."
                )

    @override
    def exchanges(
        self, known: tuple[Exchange, ...], parameter_bytes: int, mesh: Mapping[str, int]
    ) -> tuple[Exchange, ...]:
        begin, level = self.config.rampup_begin_step, self.config.sparsity[-1]
        whole = [exchange for exchange in known if "gradients" in exchange.what]
        if not whole:
            return known
        others = tuple(exchange for exchange in known if exchange not in whole)
        first = replace(
            whole[0],
            when=f"during the backward of the first {begin} updates",
            decided_by=f"dgc_configs['rampup_begin_step'] = {begin}",
        )
        few = Exchange(
            collective="all-gather",
            what="values and places of the largest entries",
            when="during the backward of each later update" if begin else whole[0].when,
            sent_bytes=(mesh["dp"] - 1) * sparse.share(parameter_bytes // 4, level) * 8,
            decided_by=f"dgc_configs['sparsity'] ends at {level}",
        )
        return (*others, first, few) if begin else (*others, few)

    @override
    def memory(self, parameter_bytes: int, mesh: Mapping[str, int]) -> tuple[Memory, ...]:
        if mesh["dp"] == 1:
            return ()
        kept = Memory(
            what="velocities and what was not sent yet",
            kept_bytes=2 * parameter_bytes,
            decided_by="dgc = True",
        )
        return (kept,)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The count of updates, and this rank's own velocities ``u`` and waiting sums ``v``."""
        return {
            "step": self._updates,
            "u": {name: memory.velocity for name, memory in self._memory.items()},
            "v": {name: memory.waiting for name, memory in self._memory.items()},
        }

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        known = {one.name: one.parameter.detach() for one in self._large.values()}
        if unknown := sorted(state["u"].keys() - known.keys()):
            raise ValueError(
                f"the state of dgc holds {unknown[:3]}, which this job does not compress; load it "
                "into the same model, on as many workers as saved it."
            )
        self._updates, self._pending = state["step"], {}
        self._memory = {
            name: _Kept(*(torch.empty_like(known[name]).copy_(state[key][name]) for key in "uv"))
            for name in state["u"]
        }


def _is_large(parameter: Tensor) -> bool:
    # DDP lays a dense parameter out in a bucket in the order of memory, which we rely on.
    dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    return parameter.numel() >= SMALLEST and parameter.dtype == torch.float32 and dense


def _flat(tensor: Tensor) -> Tensor:
    """The elements in the order of memory, as they lie in a bucket."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _pieces(bucket: GradBucket) -> list[tuple[Tensor, slice]]:
    """The parameters of a bucket, and where their gradients lie in its buffer."""
    pieces, base = [], bucket.buffer().storage_offset()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        start = gradient.storage_offset() - base
        pieces.append((parameter, slice(start, start + gradient.numel())))
    return pieces


def _described(name: str, parameter: Parameter, group: Group) -> _Large:
    options = group.options
    # To maximise, the optimizer turns the sign of what it gets; decay must still shrink.
    decay = -options["weight_decay"] if options["maximize"] else options["weight_decay"]
    return _Large(name, parameter, options["momentum"], options["nesterov"], decay)


def _split(group: Group, large: Mapping[str, Parameter]) -> list[Group]:
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
