"""What a rank computes and keeps when parts of its forward are compiled."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count, groupby

import numpy as np

from fleetx.plan.share import Share, Waiting, upwards
from fleetx.plan.trace import Number, Saved, Trace, Value
from fleetx.plan.work import Clock, Column, FusedKernels, Mask, gradients
from fleetx.strategies.compile.code import Piece, needed, pieces_of
from fleetx.strategies.compile.kept import kept
from fleetx.strategies.compile.kernels import traffic, written
from fleetx.strategies.compile.kinds import Kind
from fleetx.strategies.compile.products import (
    called_in_code,
    times_in_code,
    wants_channels_last,
)


@dataclass(frozen=True, kw_only=True)
class Units:
    """What is compiled by itself."""

    modules: frozenset[str] | None
    """Paths of modules; None: the model as a whole, or each part of it that a rank runs."""
    criterion: bool


_Place = tuple[Number, int]
"""Memory, and the part of the forward that saved it."""


@dataclass(frozen=True)
class _Kernels:
    """What code makes of each operator, as ``Work.fused`` takes it."""

    moved: Column
    backwards: Column
    starts: Column
    inside: Mask


@dataclass(frozen=True)
class _Compiled:
    """A trace as compiled code runs it; plans that run it alike share all that is found out."""

    trace: Trace
    pieces: tuple[Piece, ...]
    needed: dict[int, list[Number]]
    """Place of an operator -> what it would save by itself."""
    fresh: dict[tuple[int, int], Number]
    """Piece and value -> memory that eager code does not have."""
    wanted: Collection[Number]
    """Memory that gets gradients."""

    @cached_property
    def saves(self) -> tuple[frozenset[_Place], ...]:
        """What autograd would save for the operators of each piece."""
        return tuple(frozenset(self._saved(piece.operators)) for piece in self.pieces)

    @cached_property
    def saves_besides(self) -> frozenset[_Place]:
        """The same for those that are in none."""
        inside = {at for piece in self.pieces for at in piece.operators}
        return frozenset(self._saved(self.needed.keys() - inside))

    def _saved(self, places: Collection[int]) -> Iterator[_Place]:
        for at in places:
            part = self.trace.operations[at].part
            yield from ((number, part) for number in self.needed.get(at, ()))

    def kernels(self, clock: Clock | None) -> _Kernels:
        """Those of code, in place of operators that are no products."""
        took = FusedKernels() if clock is None else clock.fused()
        number = len(self.trace.operations)
        moved, backwards, starts = np.ones(number), np.full(number, np.nan), np.ones(number)
        inside = np.zeros(number, np.bool_)
        for piece in self.pieces:
            inside[[*piece.every]] = True
            starts[[*piece.every]] = 0
            pairs = zip(piece.code.nodes, piece.places, strict=True)
            nodes = [(node, place) for node, place in pairs if place is not None]
            fused = [place for node, place in nodes if node.kind is not Kind.ALONE]
            starts[[place for node, place in nodes if node.kind is Kind.ALONE]] = took.starts
            alone = sum(node.moved for node, _ in nodes if node.kind is not Kind.ALONE)
            forward, backward = traffic(piece.code)
            if alone and forward.moved:
                once = forward.weighed(took, took.statistics)
                moved[fused] = once / alone
                backwards[fused] = backward.weighed(took, took.sums) / once
                starts[fused] = took.starts * forward.kernels / len(fused)
            starts[piece.operators[0]] += took.call
        return _Kernels(moved, backwards, starts, inside)


def compiled(share: Share, units: Units) -> Share:
    """The share of a rank whose forward is compiled so."""
    trace, subject = share.trace, share.subject
    assert trace is not None
    trained = [name for name, piece in subject.parameters().items() if piece.trained]
    key = "compiled", id(trace), units
    found = subject.once(key, partial(_compiled, trace, units, trained))
    later = _timed(_waiting(share, found, range(len(found.pieces))), found)
    return replace(later, at_first=_at_first(share, found)) if units.criterion else later


def _at_first(share: Share, found: _Compiled) -> Share:
    """With a criterion that is no code yet: the first batch tells whether it can be."""
    assert share.trace is not None
    operations, ended = share.trace.operations, share.trace.model_ends
    code = {n for n, one in enumerate(found.pieces) if operations[one.operators[0]].at <= ended}
    return replace(_waiting(share, found, code), trace=share.trace)


def _compiled(trace: Trace, units: Units, trained: Collection[str]) -> _Compiled:
    _, wanted = gradients(trace, trained)
    pieces = tuple(pieces_of(trace, list(_runs(trace, units)), wanted))
    numbers = count(max(trace.values, default=0) + 1)
    fresh: dict[tuple[int, int], Number] = {}
    values, saved = dict(trace.values), list[Saved]()
    for which, piece in enumerate(pieces):
        values |= {number: Value(0, values[number].given) for number in _unwritten(piece)}
        for value in sorted(kept(piece.code)):
            number = piece.numbers[value]
            if number is None:
                number = fresh[which, value] = next(numbers)
                values[number] = Value(piece.code.sizes[value])
            first = trace.operations[piece.operators[0]]
            saved.append(Saved(number, first.path, first.part, _moment(trace, piece, value)))
    saves = needed(trace)
    inside = {at for piece in pieces for at in piece.operators}
    gone = {number for at in inside for number in saves.get(at, ())}
    left = {n for at, found in saves.items() if at not in inside for n in found}
    saved += [one for one in trace.saved if one.value in left or one.value not in gone]
    form = "compiled", trace.form, units
    changed = replace(trace, values=values, saved=sorted(saved, key=lambda one: one.at), form=form)
    return _Compiled(changed, pieces, saves, fresh, wanted)


def _runs(trace: Trace, units: Units) -> Iterator[list[int]]:
    """Places of operators that follow each other and are one piece of code."""
    ended = trace.model_ends

    def unit(at: int) -> tuple[str, int] | None:
        one = trace.operations[at]
        if one.at > ended:
            return ("criterion of the model", one.part) if units.criterion else None
        if units.modules is None:
            return "", one.part
        path = next((path for path in upwards(one.path) if path in units.modules), None)
        return None if path is None else (path, one.part)

    for key, places in groupby(range(len(trace.operations)), unit):
        run = list(places)
        if key is not None and any(trace.operations[at].count.moved for at in run):
            yield run


def _unwritten(piece: Piece) -> set[Number]:
    """Memory that its values take in eager code, and that compiled code does without."""
    made = {value for node in piece.code.nodes for value in node.makes}
    there = written(piece.code)
    numbers = {number: False for number in piece.numbers if number is not None}
    for value, number in enumerate(piece.numbers):
        if number is not None:
            numbers[number] |= value in there or value not in made
    return {number for number, is_there in numbers.items() if not is_there}


def _moment(trace: Trace, piece: Piece, value: int) -> int:
    """When a value is there."""
    at = piece.operators[0]
    for node, place in zip(piece.code.nodes, piece.places, strict=True):
        at = at if place is None else place
        if value in node.makes:
            return trace.operations[at].at
    return trace.operations[piece.operators[0]].at


def _waiting(share: Share, found: _Compiled, code: Collection[int]) -> Share:
    """With what these of the pieces keep, where nobody else has decided what is kept."""
    eager = {(one.value, one.part): one for one in share.waiting}
    here = {
        which: piece
        for which, piece in enumerate(found.pieces)
        if which in code
        and found.trace.operations[piece.operators[0]].part in share.parts
        and not _is_replayed(share, piece)
    }
    gone = frozenset[_Place]().union(*(found.saves[which] for which in here))
    elsewhere = (saves for which, saves in enumerate(found.saves) if which not in here)
    others = found.saves_besides.union(*elsewhere)
    waiting = {key: one for key, one in eager.items() if key in others or key not in gone}
    for which in here:
        for key, one in _kept(share, found, which, eager):
            waiting.setdefault(key, one)
    return replace(share, trace=found.trace, waiting=tuple(waiting.values()))


def _kept(
    share: Share, found: _Compiled, which: int, eager: Mapping[_Place, Waiting]
) -> Iterator[tuple[_Place, Waiting]]:
    """What a piece of code keeps, as large as this rank has it."""
    trace, piece = share.trace, found.pieces[which]
    assert trace is not None
    first = trace.operations[piece.operators[0]]
    saves = found.saves[which]
    left = _left(trace, [eager[key] for key in saves if key in eager])
    times = next((one.times for one in eager.values() if one.part == first.part), 1)
    for value in kept(piece.code):
        number = found.fresh.get((which, value), piece.numbers[value])
        assert number is not None
        key = number, first.part
        if key in eager:
            yield key, eager[key]
        elif key not in saves:  # else a strategy keeps something else in its place
            size = round(piece.code.sizes[value] * left)
            yield key, Waiting(number, first.path, first.part, size, times)


def _is_replayed(share: Share, piece: Piece) -> bool:
    assert share.trace is not None
    some = (share.trace.operations[at] for at in piece.operators)
    return any(share.runs(one.path, one.part, one.at) > 1 for one in some)


def _left(trace: Trace, waiting: Collection[Waiting]) -> float:
    """What part of values a rank has that are dealt out to several."""
    whole = sum(trace.values[one.value].size for one in waiting if one.value in trace.values)
    here = sum(one.size for one in waiting if one.value in trace.values)
    return min(1.0, here / whole) if whole else 1.0


def _timed(share: Share, found: _Compiled) -> Share:
    """With kernels of compiled code in place of operators that are no products."""
    if (work := share.work) is None:
        return share
    here = np.isin(found.trace.part_of_each, share.parts)
    clock = share.subject.clock
    key = "kernels of code", id(found)
    made = share.subject.once(key, partial(found.kernels, clock))
    new = work.fused(made.moved[here], made.backwards[here], made.starts[here], made.inside[here])
    key = "products in code", id(found)
    once, back = share.subject.once(key, partial(_products, share, found))
    new = replace(
        new,
        forward_seconds=new.forward_seconds * once[here],
        backward_seconds=new.backward_seconds * back[here],
    )
    return replace(share, work=new)


def _products(share: Share, found: _Compiled) -> tuple[Column, Column]:
    """How many times as long as by themselves operators take in code, where somebody measures."""
    operations, clock = found.trace.operations, share.subject.clock
    forward, backward = np.ones(len(operations)), np.ones(len(operations))
    if clock is None:
        return forward, backward
    on_card = share.subject.device.type != "cpu"
    for piece in found.pieces:
        there = [operations[at] for at in piece.operators]
        channels_last = wants_channels_last(there, on_card=on_card)
        for at, one in zip(piece.operators, there, strict=True):
            called = called_in_code(one, on_card=on_card, channels_last=channels_last)
            if called is not None:
                forward[at], backward[at] = times_in_code(one, called, found.wanted, clock)
    return forward, backward
