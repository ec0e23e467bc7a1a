"""What one rank holds of a job, as the strategies of a plan change it one after the other."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING

from fleetx.plan.exchange import Exchange, Memory
from fleetx.plan.mesh import AXES
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.pieces import Pieces, size_of
from fleetx.plan.run import Run
from fleetx.plan.subject import Subject

if TYPE_CHECKING:
    from fleetx.plan.trace import Trace
    from fleetx.plan.work import Work


@dataclass(frozen=True)
class Waiting:
    """A piece of memory that waits for the backward of the part of the forward that saved it."""

    value: int
    path: str
    part: int
    size: int
    times: int = 1
    """For how many micro-batches at once."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one rank holds, and what is known of the job around it."""

    subject: Subject
    """The model, its optimizer and a batch."""
    mesh: Mapping[str, int]
    rank: int = 0
    run: Run = field(default_factory=Run)

    parameters: Pieces = field(default_factory=dict)
    """As the layers of this rank compute with them."""
    held: Pieces = field(default_factory=dict)
    """What of them is kept between steps."""
    gradients: Pieces = field(default_factory=dict)
    """What is kept of them until the update."""
    buffers: Pieces = field(default_factory=dict)
    rule: OptimizerSpec | None = None
    """How parameters move; None while it is not known."""
    state_on_host: bool = False

    trace: "Trace | None" = None
    """The forward of one micro-batch, of all ranks; None while no batch is known."""
    work: "Work | None" = None
    """What this rank computes for one micro-batch."""
    waiting: tuple[Waiting, ...] = ()
    """What this rank keeps for backwards."""
    waiting_on_host: tuple[Waiting, ...] = ()
    parts: tuple[int, ...] = (0,)
    """The parts of the forward that run here."""
    opened: frozenset[str] = frozenset()
    """Submodules whose own forward never runs, because what is inside was dealt out to ranks."""
    whole: frozenset[str] = frozenset()
    """Submodules that run as one piece of code, which whatever acts on calls inside would tear."""
    replayed: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Submodule and part whose forward runs again in each backward -> up to which moment."""
    extra: tuple[Memory, ...] = ()
    """What strategies keep besides."""
    at_first: "Share | None" = None
    """The same with what waits in a new job's first batch, where strategies run more as it is."""
    unknown: tuple[str, ...] = ()
    """What cannot be known before the run, and is not in the numbers."""

    def at(self, axis: str) -> int:
        """Where the rank stands along an axis of the mesh."""
        inner = prod(self.mesh[other] for other in AXES[AXES.index(axis) + 1 :])
        return self.rank // inner % self.mesh[axis]

    @property
    def batch_bytes(self) -> int:
        """What the batch itself takes, as far as this rank reads it."""
        if self.trace is None:
            return 0
        key = "batch", self.trace.form, self.parts, self.subject.samples()
        each = self.subject.once(key, partial(_given_bytes, self.trace, frozenset(self.parts)))
        return each * self.run.micro_batches

    def with_memory(self, *more: Memory) -> "Share":
        """With something more that a strategy keeps."""
        return replace(self, extra=(*self.extra, *(m for m in more if m.kept_bytes)))

    def without_knowledge(self, *what: str) -> "Share":
        """With something that cannot be known."""
        return replace(self, unknown=(*self.unknown, *what))

    def runs(self, path: str, part: int, moment: int) -> int:
        """How often a submodule that returned at that moment runs for each batch.

        Twice if it is replayed in the backward, by itself or inside of another, which ends as soon
        as nothing more is needed.
        """
        until = (self.replayed.get((above, part), 0) for above in upwards(path))
        return 2 if any(moment < end for end in until) else 1


def _given_bytes(trace: "Trace", parts: Set[int]) -> int:
    read = {n for one in trace.operations if one.part in parts for n in one.reads}
    return sum(trace.values[number].size for number in read if trace.values[number].given)


def inside(path: str, places: Iterable[str]) -> bool:
    """Whether a path is one of the places or lies below one."""
    known = places if isinstance(places, Set) else {*places}
    return not known.isdisjoint(upwards(path))


@cache
def upwards(path: str) -> tuple[str, ...]:
    """A path and those above it, the outermost first."""
    steps = path.split(".")
    return tuple(".".join(steps[:length]) for length in range(1, len(steps) + 1))


def kept_bytes(waiting: Iterable[Waiting]) -> int:
    """What they take together: memory that several have saved counts once."""
    largest: dict[tuple[int, int], int] = defaultdict(int)
    for one in waiting:
        key = one.value, one.part
        largest[key] = max(largest[key], one.size * one.times)
    return sum(largest.values())


def statistics(share: Share, axis: str) -> tuple[Exchange, ...]:
    """The exchange that keeps buffers equal on ranks with other samples, if there is any."""
    if not (size := size_of(share.buffers)):
        return ()
    copied = Exchange(
        collective="broadcast",
        what="buffers",
        when="after each update",
        sent_bytes=size,
        moved_bytes=size,
        axis=axis,
    )
    return (copied,)
