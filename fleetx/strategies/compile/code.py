"""What a compiler is handed of a traced forward: values, operators, and what backwards need."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fleetx.plan.operators import Blank
from fleetx.plan.trace import Number, Operation, Trace
from fleetx.strategies.compile import kinds
from fleetx.strategies.compile.kinds import Kind
from fleetx.torch_internals import is_mutable

ROW_FIGURES = 8
"""Bytes that are kept of a row of a softmax: its largest number and its sum."""


@dataclass(frozen=True)
class Node:
    """One operator."""

    kind: Kind
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    figures: tuple[int, ...]
    """What of that is made of all it read, or of a row of it; the rest follows from them, too."""
    needs: tuple[int, ...]
    """What its backward reads."""
    wanted: tuple[int, ...]
    """What of all that it reads gets a gradient; nothing if it has no backward."""
    moved: int
    """Bytes that it reads and writes by itself."""
    picks: bool
    """Whether it reads no more than it makes."""
    windows: bool = False
    """Whether its backward collects gradients from windows that overlap."""


@dataclass(frozen=True)
class Code:
    """Operators that become one piece of code.

    Values have numbers of their own here: what is written over is another one.
    """

    sizes: tuple[int, ...]
    """Of each value, in bytes."""
    own: frozenset[int]
    """Parameters and buffers, which are there in any case."""
    outputs: frozenset[int]
    """What others read afterwards."""
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Piece:
    """Code, and where in the trace it stands."""

    code: Code
    numbers: tuple[Number | None, ...]
    """Memory of each value; None for what eager code does not have."""
    places: tuple[int | None, ...]
    """Of the operators that became nodes; None for a node that eager code does not have."""
    every: tuple[int, ...]
    """Of all operators, views too."""

    @cached_property
    def operators(self) -> tuple[int, ...]:
        """Places of the operators that are no views."""
        return tuple(place for place in self.places if place is not None)


def pieces_of(
    trace: Trace, runs: Sequence[Sequence[int]], wanted: Collection[Number]
) -> list[Piece]:
    """Each run of operators as code.

    Args:
        trace: what the forward does.
        runs: places of operators that become one piece of code.
        wanted: memory that gets gradients.
    """
    saves = needed(trace)
    last: dict[Number, int] = {}
    for at, one in enumerate(trace.operations):
        last.update(dict.fromkeys(one.reads, at))
    for call in trace.calls:
        if not call.path:
            last.update(dict.fromkeys(call.makes, len(trace.operations)))
    if trace.operations:  # the loss, from which backward begins
        last.update(dict.fromkeys(trace.operations[-1].makes, len(trace.operations)))
    return [_Writing(trace, saves, wanted).piece(run, last) for run in runs]


class _Writing:
    """Follows operators and gives values their numbers."""

    def __init__(
        self, trace: Trace, saves: Mapping[int, Sequence[Number]], wanted: Collection[Number]
    ) -> None:
        self._trace, self._saves, self._wanted = trace, saves, wanted
        self._sizes: list[int] = []
        self._numbers: list[Number | None] = []
        self._now: dict[Number, int] = {}
        """Memory -> what lies there."""
        self._done: dict[Hashable, tuple[int, ...]] = {}
        """What was computed of what -> the values."""

    def piece(self, run: Sequence[int], last: Mapping[Number, int]) -> Piece:
        places, nodes = list[int | None](), list[Node]()
        for at in run:
            if self._trace.operations[at].count.moved:
                found = tuple(self._nodes(at))
                places += [at, *[None] * (len(found) - 1)]
                nodes += found
        end = run[-1]
        outputs = frozenset(value for n, value in self._now.items() if last.get(n, -1) > end)
        own = frozenset(v for n, v in self._now.items() if n in self._trace.own)
        code = Code(tuple(self._sizes), own, outputs, tuple(nodes))
        return Piece(code, tuple(self._numbers), tuple(places), tuple(run))

    def _nodes(self, at: int) -> Iterator[Node]:
        one = self._trace.operations[at]
        reads = tuple(self._value(number) for number in one.reads)
        if (same := self._done_before(one, reads)) is not None:
            self._now.update(zip(one.makes, same, strict=True))
            yield Node(kinds.kind_of(one), (), (), (), (), (), one.count.moved, False)
            return
        wanted = tuple(
            value
            for number, value in zip(one.reads, reads, strict=True)
            if number in self._wanted and one.count.dtype.is_floating_point
        )
        makes = tuple(self._made(number, one) for number in _written(one))
        self._done[self._told(one, reads)] = makes
        figures = tuple(self._figures(one, makes))
        needs = [self._value(number) for number in self._saves.get(at, ())]
        if kinds.needs_shapes(one):
            needs = [value for value in needs if value not in reads]
        extra: tuple[Node, ...] = ()
        if kinds.keeps_places(one):
            places = self._byte_each(makes[-1], itemsize=8)
            needs, makes = [places], (*makes[:-1], places)
        elif kinds.needs_signs(one) and needs:
            signs = self._byte_each(needs[0], itemsize=one.count.dtype.itemsize)
            extra = (Node(Kind.FUSED, (needs[0],), (signs,), (), (), (), 0, False),)
            needs = [signs]
        kind = kinds.kind_of(one)
        facts = tuple(dict.fromkeys((*needs, *figures))) if figures and needs else tuple(needs)
        yield Node(
            kind,
            reads,
            tuple(dict.fromkeys((*makes, *figures))),
            figures,
            facts,
            wanted if makes else (),
            one.count.moved,
            kinds.picks(one),
            kinds.keeps_places(one),
        )
        yield from extra

    def _done_before(self, one: Operation, reads: tuple[int, ...]) -> tuple[int, ...] | None:
        """What the same operator made of the same values: compiled code computes it once."""
        again = kinds.kind_of(one) in {Kind.FUSED, Kind.ROWS} and one.makes
        return self._done.get(self._told(one, reads)) if again else None

    @staticmethod
    def _told(one: Operation, reads: tuple[int, ...]) -> Hashable:
        called = one.signature
        return called.operator, reads, repr((called.args, called.kwargs))

    def _value(self, number: Number) -> int:
        if number not in self._now:
            self._now[number] = self._new(number, self._trace.values[number].size)
        return self._now[number]

    def _made(self, number: Number, one: Operation) -> int:
        size = self._trace.values[number].size
        if kinds.draws(one):
            value = self._new(None, size // one.count.dtype.itemsize)
        else:
            value = self._new(number, size)
        self._now[number] = value
        return value

    def _new(self, number: Number | None, size: int) -> int:
        self._sizes.append(size)
        self._numbers.append(number)
        return len(self._sizes) - 1

    def _byte_each(self, value: int, *, itemsize: int) -> int:
        return self._new(None, self._sizes[value] // itemsize)

    def _figures(self, one: Operation, makes: tuple[int, ...]) -> Iterator[int]:
        if rows := kinds.rows_of(one):
            yield self._new(None, rows * ROW_FIGURES)
        elif kinds.kind_of(one) in {Kind.ROWS, Kind.STATISTICS}:
            yield from makes[1:]


def _written(one: Operation) -> tuple[Number, ...]:
    """What it made anew, or wrote over."""
    if one.makes or not is_mutable(one.signature.operator):
        return one.makes
    first = next((leaf for leaf in one.signature.args if isinstance(leaf, Blank)), None)
    return () if first is None else (one.reads[first.place],)


def needed(trace: Trace) -> dict[int, list[Number]]:
    """Place of an operator -> what autograd saved for its backward."""
    places = [at for at, one in enumerate(trace.operations) if one.count.moved]
    found: dict[int, list[Number]] = {}
    saved = iter(trace.saved)
    event = next(saved, None)
    for before, after in zip([None, *places], [*places, None], strict=True):
        until = float("inf") if after is None else trace.operations[after].at
        between: list[Number] = []
        while event is not None and event.at < until:
            between.append(event.value)
            event = next(saved, None)
        for number, at in _shared_out(trace, between, before, after):
            found.setdefault(at, []).append(number)
    return found


def _shared_out(
    trace: Trace, numbers: Sequence[Number], before: int | None, after: int | None
) -> Iterator[tuple[Number, int]]:
    """Which of two operators saved what: results the first, what it will read the second."""
    seen = set[Number]()
    for number in numbers:
        is_made = before is not None and number in _written(trace.operations[before])
        is_read = after is not None and number in trace.operations[after].reads
        if before is not None and is_made and is_read:
            results = kinds.saves_its_result(trace.operations[before])
            is_made = results and number not in seen
        seen.add(number)
        place = before if is_made or not is_read else after
        if place is not None:
            yield number, place
