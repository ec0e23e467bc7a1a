"""The kernels of compiled code besides those of products: what they read and write.

Operators that follow each other without a product between them are one kernel: what comes from
outside of it is read once, what others need of it is written once. Statistics over all rows end a
kernel, because what is computed with them begins when all was read.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from fleetx.plan.work import FusedKernels
from fleetx.strategies.compile.code import Code, Node
from fleetx.strategies.compile.kept import MANY, kept, sources
from fleetx.strategies.compile.kinds import Kind


@dataclass(frozen=True)
class Traffic:
    """What fused kernels take together."""

    moved: int = 0
    """Bytes that they read and write."""
    kernels: int = 0
    summed: int = 0
    """What of the bytes is moved by those that sum up over all rows."""
    sums: int = 0
    """How many of them do."""
    collected: int = 0
    """What of the bytes is moved by those that collect gradients from windows."""
    along_rows: int = 0
    """What of the bytes is moved by those that go along rows, which take more than a copy does."""

    def weighed(self, fused: FusedKernels, summed: float) -> float:
        """In bytes that memory moves in the same time.

        Args:
            fused: what such kernels take.
            summed: for each byte that is summed up.
        """
        started = (self.kernels - self.sums) * fused.each + self.sums * fused.each_sum
        longer = self.summed * (summed - 1) + self.collected * (fused.windows - 1)
        return self.moved + longer + self.along_rows * (fused.rows - 1) + started


@dataclass(frozen=True)
class _Do:
    """A part of a kernel, or a kernel of its own."""

    reads: frozenset[int]
    makes: frozenset[int]
    alone: bool = False
    """Whether it is a kernel that nothing is fused with, and whose time is known."""
    ends: bool = False
    """Whether what it makes is there when all of its input was read."""
    across: bool = False
    """Whether it goes through its input along another axis than those beside it."""
    picks: bool = False
    windows: bool = False
    rows: bool = False


@lru_cache(MANY)
def traffic(code: Code) -> tuple[Traffic, Traffic]:
    """Of a forward, and of its backward."""
    sizes = dict(enumerate(code.sizes))
    return _sum(list(_forward(code)), sizes, written(code)), _backward(code, kept(code))


@lru_cache(MANY)
def written(code: Code) -> frozenset[int]:
    """The values of a forward that lie in memory; all others stay inside of a kernel."""
    forward = list(_forward(code))
    kernels = _kernels(forward, dict(enumerate(code.sizes)))
    alone = (value for one in forward if one.alone for value in one.reads | one.makes)
    read = (value for kernel in kernels for value in kernel.reads.keys() - kernel.makes)
    return frozenset((*alone, *read, *code.outputs, *kept(code)))


def _forward(code: Code) -> Iterator[_Do]:
    for node in (node for node in code.nodes if node.makes):
        reads, makes = frozenset(node.reads), frozenset(node.makes)
        if node.kind is Kind.STATISTICS:
            figures = frozenset(node.figures)
            yield _Do(reads, figures, ends=True)
            yield _Do(reads | figures, makes - figures)
        else:
            rows = node.kind is Kind.ROWS
            yield _Do(reads, makes, node.kind is Kind.ALONE, picks=node.picks, rows=rows)


class _Backward:
    """Writes down what the backward of some code does, from its end."""

    def __init__(self, code: Code, keeps: Collection[int]) -> None:
        self.code = code
        self.sizes = dict(enumerate(code.sizes))
        self.steps: list[_Do] = []
        self.written = set[int]()
        self._there = {*keeps, *code.own}
        self._made = {value: node for node in code.nodes for value in node.makes}
        self._parts: dict[int, list[int]] = {}
        """Value -> the gradients that its readers have made."""
        self._known: dict[int, frozenset[int]] = {}
        for value in code.outputs:
            if value in self._made and self._made[value].wanted:
                self._parts[value] = [self._new(code.sizes[value])]

    def follow(self) -> None:
        """All operators, the last first."""
        for node in reversed(self.code.nodes):
            gradients = frozenset(g for v in node.makes for g in self._gradient(v))
            if node.wanted and gradients:
                self._step(node, gradients)
        for value in (*self._parts,):
            self.written.update(self._gradient(value))

    def _new(self, size: int) -> int:
        number = len(self.sizes)
        self.sizes[number] = size
        return number

    def _gradient(self, value: int) -> tuple[int, ...]:
        """Of a value: those of its readers, added up."""
        parts = self._parts.pop(value, [])
        if len(parts) < 2:
            return tuple(parts)
        whole = self._new(self.code.sizes[value])
        self.steps.append(_Do(frozenset(parts), frozenset({whole})))
        return (whole,)

    def _step(self, node: Node, gradients: frozenset[int]) -> None:
        code, largest = self.code, max(self.code.sizes[value] for value in node.makes)
        facts = frozenset(at for value in node.needs for at in self._from(value))
        alone = node.kind is Kind.ALONE
        made, rows = set[int](), set[int]()
        for value in node.wanted:
            number = self._new(code.sizes[value])
            if value not in code.own:
                self._parts.setdefault(value, []).append(number)
                made.add(number)
            elif not alone:
                (made if code.sizes[value] * 2 > largest else rows).add(number)
                self.written.add(number)
        reads = gradients | facts
        if node.kind is Kind.STATISTICS:
            figures = frozenset(rows or {self._new(0)})
            self.steps += [
                _Do(reads, figures, ends=True),
                _Do(reads | figures, frozenset(made)),
            ]
            return
        if made or alone:
            along = node.kind is Kind.ROWS
            self.steps.append(_Do(reads, frozenset(made), alone, windows=node.windows, rows=along))
        if rows:
            self.steps.append(_Do(reads, frozenset(rows), ends=True, across=True))

    def _from(self, value: int) -> frozenset[int]:
        """What is there of all from which a value is computed again."""
        if value in self._there or value not in self._made:
            return frozenset({value})
        if value not in self._known:
            found = (self._from(one) for one in sources(self._made[value], value))
            self._known[value] = frozenset[int]().union(*found)
        return self._known[value]


def _backward(code: Code, keeps: Collection[int]) -> Traffic:
    whole = _Backward(code, keeps)
    whole.follow()
    return _sum(whole.steps, whole.sizes, whole.written)


@dataclass
class _Kernel:
    reads: dict[int, int] = field(default_factory=dict)
    """Value -> bytes that are read of it."""
    makes: set[int] = field(default_factory=set)
    sums: bool = False
    windows: bool = False
    rows: bool = False


def _sum(steps: Sequence[_Do], sizes: Mapping[int, int], written: Collection[int]) -> Traffic:
    """What all kernels of some steps move."""
    kernels = _kernels(steps, sizes)
    outside = {value for one in steps if one.alone for value in one.reads} | {*written}
    for kernel in kernels:
        outside |= kernel.reads.keys() - kernel.makes
    moved, summed, collected, along_rows = 0, 0, 0, 0
    for kernel in kernels:
        reads = sum(size for value, size in kernel.reads.items() if value not in kernel.makes)
        size = reads + sum(sizes[value] for value in kernel.makes & outside)
        moved += size
        summed += size * kernel.sums
        collected += size * kernel.windows
        along_rows += size * (kernel.rows and not kernel.sums)
    sums = sum(kernel.sums for kernel in kernels)
    return Traffic(moved, len(kernels), summed, sums, collected, along_rows)


def _kernels(steps: Sequence[_Do], sizes: Mapping[int, int]) -> list[_Kernel]:
    """Steps as kernels: those that have values in common and wait for the same products."""
    after: dict[int, int] = {}
    found: dict[tuple[int, bool], list[_Kernel]] = {}
    for one in steps:
        level = max((after.get(value, 0) for value in one.reads), default=0)
        after.update(dict.fromkeys(one.makes, level + (one.alone or one.ends)))
        if one.alone:
            continue
        there = found.setdefault((level, one.across), [])
        meant = one.reads | one.makes
        mine = _Kernel()
        for other in [k for k in there if not meant.isdisjoint(k.reads.keys() | k.makes)]:
            there.remove(other)
            mine.reads.update(other.reads)
            mine.makes |= other.makes
            mine.sums |= other.sums
            mine.windows |= other.windows
            mine.rows |= other.rows
        limit = sum(sizes[value] for value in one.makes)
        for value in one.reads:
            size = min(sizes[value], limit) if one.picks else sizes[value]
            mine.reads[value] = max(size, mine.reads.get(value, 0))
        mine.makes |= one.makes
        mine.sums |= one.ends
        mine.windows |= one.windows
        mine.rows |= one.rows
        there.append(mine)
    return [kernel for kernels in found.values() for kernel in kernels]
