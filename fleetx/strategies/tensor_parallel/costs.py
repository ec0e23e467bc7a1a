"""What a rank holds and sends when layers are cut over ranks, by a trace of the whole forward."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from fleetx.graph import layer_kinds
from fleetx.graph.layer_kinds import Cuts
from fleetx.plan.exchange import Exchange, half_ring_bytes, ring_bytes
from fleetx.plan.pieces import Pieces
from fleetx.plan.share import Share, Waiting, inside

if TYPE_CHECKING:
    from fleetx.plan.trace import Call, Trace
    from fleetx.plan.work import Mask

Sum = Callable[[int, int], int]
"""Bytes of a tensor and ranks -> what one rank sends."""


def spread(share: Share, dims: Mapping[str, int | None], cuts: Cuts) -> Share:
    """What a rank holds of layers that are cut.

    Args:
        share: what it held of whole ones.
        dims: first name of a parameter -> the dimension along which it is cut.
        cuts: what is cut how.
    """
    ranks, at = share.mesh["tp"], share.at("tp")

    def part(pieces: Pieces) -> Pieces:
        return {
            name: piece if (dim := dims[name]) is None else piece.cut(dim, ranks, at)
            for name, piece in pieces.items()
        }

    share = replace(
        share,
        parameters=part(share.parameters),
        held=part(share.held),
        gradients=part(share.gradients),
    )
    if share.trace is None:
        return share
    layers, trace = _layers(share, cuts, dims), share.trace
    cut = layers.spread_values(trace)
    waiting = tuple(layers.kept(one, cut, ranks) for one in share.waiting)
    work = share.work
    if work is not None:
        here = np.isin(trace.part_of_each, share.parts)
        work = work.divided(layers.read_parts(trace)[here], ranks)
    return replace(share, waiting=waiting, work=work)


def _layers(share: Share, cuts: Cuts, dims: Mapping[str, int | None]) -> "_Layers":
    """Of one way to cut, which is looked at once."""
    subject = share.subject
    paths = subject.once("paths", lambda: layer_kinds.paths_of(subject.shape))
    how = frozenset((paths[module], kind) for module, kind in cuts.items())
    key = "layers that are cut", how, share.opened
    return subject.once(key, lambda: _Layers(share, cuts, dims))


@dataclass(frozen=True)
class _Spread:
    """Memory of which a rank has a part."""

    values: set[int]
    copies: set[int]
    """What was made of weights alone, whether in parts or not."""


class _Layers:
    """Which paths of a model are cut how, and where tensors are spread."""

    def __init__(self, share: Share, cuts: Cuts, dims: Mapping[str, int | None]) -> None:
        self._cut = {name for name, dim in dims.items() if dim is not None}
        self._once, self._inside = share.subject.once, dict[str, bool]()
        model = share.subject.shape
        opened = {model.get_submodule(path) for path in share.opened}
        paths = layer_kinds.paths_of(model)
        self.kinds = {paths[module]: kind for module, kind in cuts.items()}
        self.between = _paths(layer_kinds.around_positions(model, cuts, opened), paths)
        self.regions = _paths(layer_kinds.regions(model, cuts, opened), paths) | self.between
        self.alone = {p for m, p in paths.items() if isinstance(m, layer_kinds.ALONE)}
        self.tables = {p for m, p in paths.items() if isinstance(m, nn.Embedding)}

    def by_position(self, path: str) -> bool:
        """Whether what leaves a row layer is cut by position."""
        return _within(path, self.between)

    def spread_values(self, trace: "Trace") -> "_Spread":
        """The memory of which a rank has a part.

        It begins with what column layers make, and goes on with all that is computed from it,
        until row layers make sums.
        """
        return self._once(("spread", self, trace.form), lambda: self._spread_values(trace))

    def _spread_values(self, trace: "Trace") -> "_Spread":
        found, copies = set[int](), set[int]()
        cut = {number for number, name in trace.own.items() if name in self._cut}
        for operation in trace.operations:
            reads = set(operation.reads)
            if reads <= trace.own.keys():  # such as a weight in another number format
                copies.update(operation.makes)
                is_spread = not reads.isdisjoint(cut)
            else:
                weights = not reads.isdisjoint(cut) or not found.isdisjoint(reads & copies)
                is_spread = self._spreads(operation.path, weights, not reads.isdisjoint(found))
            if is_spread:
                found.update(operation.makes)
        return _Spread(found, copies)

    def read_parts(self, trace: "Trace") -> "Mask":
        """Which operators a rank computes for its part alone: they read or make what is spread."""
        return self._once(("in parts", self, trace.form), lambda: self._read_parts(trace))

    def _read_parts(self, trace: "Trace") -> "Mask":
        parts = self.spread_values(trace).values | {
            number for number, name in trace.own.items() if name in self._cut
        }
        touched = (parts.isdisjoint((*one.reads, *one.makes)) for one in trace.operations)
        return np.array([not apart for apart in touched], np.bool_)

    def _spreads(self, path: str, reads_weights: bool, reads_spread: bool) -> bool:
        kind = self.kinds.get(path)
        if kind == "sequence":
            return True
        if kind is not None and reads_weights:
            return kind == "column" or (kind == "row" and self.by_position(path))
        if not reads_spread:
            return False
        if path not in self._inside:
            self._inside[path] = not _within(path, self.alone) and _within(path, self.regions)
        return self._inside[path]

    def kept(self, one: Waiting, spread: "_Spread", ranks: int) -> Waiting:
        """What of a saved value waits on a rank; column layers read whole positions."""
        if one.value not in spread.values:
            return one
        reads = self.kinds.get(one.path) == "column" and one.value not in spread.copies
        if reads and self.by_position(one.path):
            return replace(one, value=-one.value)
        return Waiting(one.value, one.path, one.part, one.size // ranks, one.times)


def _paths(modules: Iterable[nn.Module], paths: Mapping[nn.Module, str]) -> set[str]:
    return {paths[module] for module in modules}


def _within(path: str, places: set[str]) -> bool:
    return "" in places or inside(path, places)


def traffic(
    share: Share, dims: Mapping[str, int | None], cuts: Cuts, decided: str
) -> tuple[Exchange, ...]:
    """The exchanges of a micro-batch, for the layers that run on a rank."""
    trace, ranks = share.trace, share.mesh["tp"]
    assert trace is not None
    layers = _layers(share, cuts, dims)
    sums = _Sums(share, trace, ranks)
    for call in trace.calls:
        kind = layers.kinds.get(call.path)
        if call.part not in share.parts or kind in (None, "sequence"):
            continue
        positions = layers.by_position(call.path)
        if kind == "row":
            sums.forward(call, call.makes, positions)
        elif kind == "column":
            sums.backward(call, positions)
        elif call.path in layers.tables:
            sums.forward(call, call.makes, False)
        else:
            sums.gathered(call)
            sums.backward(call, positions)
    if layers.between:
        sums.by_position(layers)
    return tuple(sums.exchanges(decided))


class _Sums:
    """Bytes of what is exchanged in the forward and in the backward of a micro-batch."""

    def __init__(self, share: Share, trace: "Trace", ranks: int) -> None:
        self._share, self._trace, self._ranks = share, trace, ranks
        self._found: dict[tuple[str, str, str], int] = {}
        self._counted: dict[tuple[str, str, str], int] = {}
        self._seen: set[int] = set()

    def _size(self, numbers: Iterable[int]) -> int:
        return sum(self._trace.values[n].size for n in numbers if n not in self._trace.own)

    def _add(self, collective: str, what: str, when: str, size: int, count: int = 1) -> None:
        key = collective, what, when
        self._found[key] = self._found.get(key, 0) + size
        self._counted[key] = self._counted.get(key, 0) + (count if size else 0)

    def forward(self, call: "Call", numbers: Iterable[int], positions: bool) -> None:
        """Parts become a sum; where the call is replayed, once more in the backward."""
        runs = self._share.runs(call.path, call.part, call.at)
        size = self._size(numbers) * runs
        name = "reduce-scatter" if positions else "all-reduce"
        self._add(name, "what row and vocabulary layers make", "in each forward", size, runs)
        if positions:
            what = "the gradients of what row layers make"
            self._add("all-gather", what, "in each backward", self._size(numbers))

    def gathered(self, call: "Call") -> None:
        """Parts are put together."""
        runs = self._share.runs(call.path, call.part, call.at)
        size = self._size(call.makes) * runs
        self._add("all-gather", "what output layers make", "in each forward", size, runs)

    def backward(self, call: "Call", positions: bool) -> None:
        """Gradients of what column layers read become sums, once for all layers that read it."""
        new = [number for number in call.reads if number not in self._seen]
        self._seen.update(new)
        if positions:
            runs = self._share.runs(call.path, call.part, call.at)
            size = self._size(new) * runs
            self._add("all-gather", "what column layers read", "in each forward", size, runs)
        name = "reduce-scatter" if positions else "all-reduce"
        what = "the gradients of what column layers read"
        self._add(name, what, "in each backward", self._size(new))

    def by_position(self, layers: _Layers) -> None:
        """What layers that see some of the positions alone exchange in the backward.

        Each rank has a part of the gradients of their weights, and of the gradients of whole
        values that they read.
        """
        spread, weights, whole = layers.spread_values(self._trace).values, set[int](), 0
        for operation in self._trace.operations:
            made = [n for n in operation.makes if n in spread]
            if not made or operation.part not in self._share.parts:
                continue
            kind = layers.kinds.get(operation.path)
            if kind in ("column", "row", "vocabulary") or not layers.by_position(operation.path):
                continue
            sizes = {self._trace.values[n].size for n in made}
            weights |= {n for n in operation.reads if n in self._trace.own}
            others = [n for n in operation.reads if n not in spread and n not in self._trace.own]
            whole += sum(self._size([n]) for n in others if self._trace.values[n].size in sizes)
        size = sum(self._trace.values[number].size for number in weights)
        when = "in each backward"
        self._add("all-reduce", "the gradients of weights of norms", when, size, len(weights))
        what = "the gradients of what norms read"
        self._add("all-gather", what, when, whole)

    def exchanges(self, decided: str) -> Iterable[Exchange]:
        """One for each kind."""
        run = self._share.run
        common: dict[str, Any] = {
            "times": run.micro_batches * run.batches,
            "decided_by": decided,
            "axis": "tp",
        }
        for (collective, what, when), size in self._found.items():
            sent: Sum = ring_bytes if collective == "all-reduce" else half_ring_bytes
            yield Exchange(
                collective=collective,
                what=what,
                when=when,
                sent_bytes=sent(size, self._ranks),
                moved_bytes=size,
                pieces=self._counted[collective, what, when],
                **common,
            )
