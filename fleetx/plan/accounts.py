"""What every rank of a plan holds and sends, before anything runs."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange, Memory
from fleetx.plan.mesh import AXES
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.pieces import Pieces, size_of
from fleetx.plan.run import Run
from fleetx.plan.share import Share, Waiting, kept_bytes
from fleetx.plan.strategy import Plan
from fleetx.plan.subject import Subject
from fleetx.plan.trace import Trace
from fleetx.plan.whole_call import WholeCall
from fleetx.plan.work import Work, work_of
from fleetx.torch_internals import tree_leaves

SPEED = ("foreach", "fused", "capturable")
"""Options of torch's optimizers that say how to compute and not what."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one rank holds, in bytes, and what it sends."""

    rank: int
    place: dict[str, int]
    """Axis of the mesh -> where the rank stands along it."""
    parameters: int
    buffers: int
    gradients: int
    state: int | None
    """Of the optimizer; None where no optimizer is known, or its state cannot be."""
    activations: int | None
    """What waits for backwards when most of it does; None where no batch is known."""
    extra: tuple[Memory, ...]
    """What strategies keep besides."""
    on_host: int
    """What of all this waits in the memory of the host, and is not counted above."""
    exchanges: tuple[Exchange, ...]
    unknown: tuple[str, ...]
    """What cannot be known before the run, and is in none of the numbers."""

    @property
    def total(self) -> int:
        """All that is known, at the moment when most of it is there."""
        known = (self.parameters, self.buffers, self.gradients, self.state, self.activations)
        return sum(n or 0 for n in known) + sum(one.kept_bytes for one in self.extra)

    @property
    def sent(self) -> float:
        """Bytes that this rank sends for each update, as far as they are known."""
        return sum(exchange.sent_per_update or 0 for exchange in self.exchanges)


class Accounts:
    """The ranks of one plan for one subject, each looked at when somebody asks."""

    def __init__(self, plan: Plan, subject: Subject) -> None:
        self.plan, self.subject = plan, subject
        self._known: dict[int, Needs] = {}
        self._shares: dict[int, Share] = {}

    @property
    def workers(self) -> int:
        """How many ranks the plan has."""
        return prod(self.plan.mesh.values())

    def __getitem__(self, rank: int) -> Needs:
        if not 0 <= rank < self.workers:
            raise IndexError(f"the plan has {self.workers} ranks, and there is no rank {rank}.")
        if rank not in self._known:
            self._known[rank] = _needs(self.plan, self.share(rank))
        return self._known[rank]

    @cached_property
    def run(self) -> Run:
        """How the forward of a batch runs."""
        run = Run()
        for strategy in self.plan.strategies:
            run = strategy.running(run, self.subject, self.plan.mesh)
        return run

    @cached_property
    def undivided_run(self) -> Run:
        """The same where the model is called as a whole, although a plan may run it in parts."""
        run = Run()
        for strategy in self.plan.strategies:
            found = strategy.running(run, self.subject, self.plan.mesh)
            if found.forward is None:
                run = found
            else:
                run = replace(run, micro_batches=found.micro_batches, batches=found.batches)
        return run

    @cached_property
    def undivided(self) -> Share:
        """What one device would compute that calls the model as a whole, before any strategy."""
        if self.undivided_run.key == self.run.key:
            return self._whole
        return _with_trace(replace(self._whole, run=self.undivided_run))

    @property
    def undivided_call(self) -> WholeCall:
        """The same as something that may be run."""
        share, subject = self.undivided, self.subject
        assert subject.model is not None
        tensors = 2 * size_of(share.parameters) + size_of(share.buffers)
        return WholeCall(
            model=subject.model,
            inputs=subject.sample,
            targets=subject.targets,
            criterion=subject.criterion,
            run=share.run,
            samples=subject.samples() // share.run.micro_batches,
            needed=tensors + kept_bytes(share.waiting),
        )

    def share(self, rank: int) -> Share:
        """What a rank holds after all strategies of the plan."""
        if rank not in self._shares:
            share = replace(self._whole, rank=rank)
            for strategy in self.plan.strategies:
                share = strategy.share(share)
            self._shares[rank] = share
        return self._shares[rank]

    @cached_property
    def _whole(self) -> Share:
        """What a rank would hold if nothing were spread."""
        subject = self.subject
        every = subject.parameters()
        share = Share(
            subject=subject,
            mesh=self.plan.mesh,
            run=self.run,
            parameters=every,
            held=every,
            gradients={name: piece for name, piece in every.items() if piece.trained},
            buffers=subject.buffers(),
            rule=subject.rule(),
        )
        return _with_trace(share) if subject.sample is not None else share


def _with_trace(share: Share) -> Share:
    try:
        trace = share.subject.trace(share.run)
    except PlanError as error:
        return share.without_knowledge(f"what waits for backwards, because {error}")
    if not trace.has_criterion:
        share = share.without_knowledge(
            "what the criterion keeps, because none was given (criterion=, targets=)"
        )
    if share.subject.traced_on.type != share.subject.device.type:
        kind = share.subject.device.type
        share = share.without_knowledge(
            f"what kernels of {kind} keep where they differ from those of the CPU, because there "
            f"is no {kind} here"
        )
    key = "waiting", share.run.key, share.run.micro_batches, share.subject.samples()
    waiting = share.subject.once(key, lambda: tuple(_waiting(trace, share.run)))
    return replace(share, trace=trace, work=_work(share, trace), waiting=waiting)


def _waiting(trace: Trace, run: Run) -> Iterator[Waiting]:
    for saved in trace.saved:
        value = trace.values[saved.value]
        # Micro-batches are views of the batch, which is there as a whole all the time.
        size = value.size * run.micro_batches if value.given else value.size
        yield Waiting(saved.value, saved.path, saved.part, size)


def _work(share: Share, trace: Trace) -> Work:
    """What a rank would compute if nothing were spread; found once for each way to run."""
    key = "work", share.run.key, share.subject.samples() // share.run.micro_batches
    trained = [name for name, piece in share.parameters.items() if piece.trained]
    return share.subject.once(key, lambda: work_of(trace, trained, share.subject.clock))


def _needs(plan: Plan, share: Share) -> Needs:
    exchanges: tuple[Exchange, ...] = ()
    for strategy in reversed(plan.strategies):
        exchanges = strategy.exchanges(exchanges, share)
    kept = share.subject.kept
    state = None if share.rule is None else _state_bytes(share.rule, share.held, kept)
    unknown = share.unknown
    if share.rule is not None and state is None:
        name = share.rule.cls.__name__
        unknown = (*unknown, f"the state of {name}, which needs numbers for its first step")
    on_host = kept_bytes(share.waiting_on_host) + (state or 0) * share.state_on_host
    return Needs(
        rank=share.rank,
        place={axis: share.at(axis) for axis in AXES},
        parameters=size_of(share.held),
        buffers=size_of(share.buffers),
        gradients=size_of(share.gradients),
        state=0 if state is not None and share.state_on_host else state,
        activations=None if share.trace is None else kept_bytes(share.waiting),
        extra=share.extra,
        on_host=on_host,
        exchanges=exchanges,
        unknown=unknown,
    )


def _state_bytes(rule: OptimizerSpec, held: Pieces, kept: dict[Any, Any]) -> int | None:
    """What an optimizer keeps for these parameters after its first step, made without numbers.

    It keeps as much for each parameter of one shape, which is found out once.
    """
    group_of = {name: at for at, group in enumerate(rule.groups) for name in group.names}
    shapes = [
        (group_of[name], piece.shape, piece.dtype)
        for name, piece in held.items()
        if piece.trained and piece.numbers and name in group_of
    ]
    known: dict[_Shape, int] = kept.setdefault(("state", rule.cls, _told(rule)), {})
    if unknown := set(shapes) - known.keys():
        try:
            known.update(_state_sizes(rule, sorted(unknown, key=str)))
        except Exception:  # whatever the user's rule needs numbers for: nothing is known then
            return None
    return sum(known[shape] for shape in shapes)


_Shape = tuple[int, tuple[int, ...], torch.dtype]
"""Group of the optimizer, shape and number format."""


def _told(rule: OptimizerSpec) -> str:
    """What decides how much it keeps."""
    return repr([rule.defaults, *(group.options for group in rule.groups)])


def _state_sizes(rule: OptimizerSpec, shapes: Sequence[_Shape]) -> dict[_Shape, int]:
    groups: dict[int, list[tuple[_Shape, nn.Parameter]]] = {}
    for key in shapes:
        at, shape, dtype = key
        parameter = nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"))
        parameter.grad = torch.empty_like(parameter)
        groups.setdefault(at, []).append((key, parameter))
    made = [
        {"params": [p for _, p in found], **_slow(rule.groups[at].options)}
        for at, found in groups.items()
    ]
    optimizer = rule.cls(made, **_slow(rule.accepted))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.step()
    every = [pair for found in groups.values() for pair in found]
    return {key: _size(optimizer.state[parameter]) for key, parameter in every}


def _slow(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without kernels that exist on certain devices alone."""
    kept = {key: value for key, value in options.items() if key not in SPEED}
    return kept | {key: False for key in ("foreach", "fused") if key in options}


def _size(state: Mapping[str, Any]) -> int:
    tensors = {id(leaf): leaf for leaf in tree_leaves(dict(state)) if isinstance(leaf, Tensor)}
    return sum(t.numel() * t.element_size() for t in tensors.values())
