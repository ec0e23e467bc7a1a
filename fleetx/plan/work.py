"""What a rank computes for one micro-batch: the operators of a forward as columns of numbers.

Columns, because whoever compares hundreds of plans adds up thousands of operators for each.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fleetx.plan.operators import KINDS, Kind

if TYPE_CHECKING:
    from fleetx.plan.optimizer_spec import OptimizerSpec
    from fleetx.plan.trace import Operation, Trace
    from fleetx.plan.whole_call import WholeCall

_MOST: dict[Kind, float] = {"product": 2, "convolution": 2, "attention": 2.5, "other": 1}
"""So many times its forward a backward takes at most; that of attention computes scores anew."""
Column = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operators in the order in which a forward ran them."""

    part: NDArray[np.int64]
    """The part of the forward."""
    kind: NDArray[np.int64]
    """Which of `KINDS`."""
    bits: NDArray[np.int64]
    """Of the numbers with which it computes."""
    operations: Column
    """Multiplications and additions of one forward."""
    moved: Column
    """Bytes that one forward reads and writes."""
    calls: Column
    """Calls of submodules that ended after it and before the next one."""
    starts: Column
    """What the host does to start it, in times of what it does for an operator of eager code."""
    dispatched: Column
    """1 for what torch's DTensor deals out to ranks, which takes the host longer."""
    forwards: Column
    """How often it runs forward for each backward."""
    backwards: Column
    """Its backward takes so many times what its forward takes."""
    joined: Column
    """Bytes of gradients that its backward adds to those of other readers of the same values."""
    forward_seconds: Column
    """As a device took for it; not a number where nobody measured."""
    backward_seconds: Column

    def where(self, mask: Mask) -> "Work":
        """Some of the operators."""
        return Work(**{name: column[mask] for name, column in self._columns()})

    def divided(self, mask: Mask, ranks: int) -> "Work":
        """With some operators computed by several ranks together."""
        rest = np.where(mask, 1 / ranks, 1.0)
        columns = ("operations", "moved", "joined", "forward_seconds", "backward_seconds")
        parts = {name: getattr(self, name) * rest for name in columns}
        return replace(self, dispatched=np.maximum(self.dispatched, mask), **parts)

    def replayed(self, mask: Mask) -> "Work":
        """With some operators run forward once more."""
        return replace(self, forwards=self.forwards + mask)

    def fused(self, moved: Column, backwards: Column, starts: Column, inside: Mask) -> "Work":
        """As code of a compiler, in which operators between products are parts of kernels.

        Args:
            moved: what is left of the bytes of each operator.
            backwards: so many times as long its backward takes then; not a number: as before.
            starts: what the host does to start each of them.
            inside: what is such code, in which nothing of Python runs.
        """
        is_part = ~np.isnan(backwards)
        unknown = np.where(is_part, np.nan, 0.0)  # what somebody measured was an operator by itself
        return replace(
            self,
            moved=self.moved * moved,
            backwards=np.where(is_part, backwards, self.backwards),
            starts=self.starts * starts,
            calls=np.where(inside, 0.0, self.calls),
            dispatched=np.where(inside, 0.0, self.dispatched),
            joined=np.where(inside, 0.0, self.joined),
            forward_seconds=self.forward_seconds + unknown,
            backward_seconds=self.backward_seconds + unknown,
        )

    def _columns(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.__dataclass_fields__]


@dataclass(frozen=True, kw_only=True)
class FusedKernels:
    """What kernels of compiled code take, in bytes that memory moves meanwhile."""

    each: float = 0.0
    """Of a kernel without work."""
    each_sum: float = 0.0
    """Of one that sums up over all rows."""
    statistics: float = 1.0
    """For each byte of which it finds means and variances over all rows."""
    sums: float = 1.0
    """For each byte that it sums up over all rows."""
    rows: float = 1.0
    """For each byte of what goes along rows, as softmax and layer norm do."""
    windows: float = 1.0
    """For each byte that gradients move which it collects from the windows of a pooling."""
    starts: float = 1.0
    """What the host does for one, in times of what it does for an operator of eager code."""
    call: float = 0.0
    """The same for a call of code."""


class Clock(Protocol):
    """Measures on a device that is here; what it cannot measure is not a number."""

    def __call__(self, one: "Operation", wanted: Collection[int], /) -> tuple[float, float]:
        """An operator and the memory that wants gradients -> seconds forward and backward."""

    def update(self, rule: "OptimizerSpec") -> tuple[float, float]:
        """Seconds of an update for each parameter, and for each number in it."""

    def fused(self) -> FusedKernels:
        """What kernels of compiled code take."""

    def called(self, call: "WholeCall") -> tuple[float, float]:
        """Seconds of the model's own forward and backward."""


def work_of(trace: "Trace", trained: Collection[str], clock: Clock | None = None) -> Work:
    """All operators of a forward.

    Args:
        trace: the forward.
        trained: names of parameters that get gradients.
        clock: measures operators.
    """
    counts = [one.count for one in trace.operations]
    backwards, wanted = gradients(trace, trained)
    unknown = (float("nan"), float("nan"))
    seconds = [unknown if clock is None else clock(one, wanted) for one in trace.operations]
    return Work(
        part=np.array([one.part for one in trace.operations], np.int64),
        kind=np.array([KINDS.index(count.kind) for count in counts], np.int64),
        bits=np.array([8 * _itemsize(count.dtype) for count in counts], np.int64),
        operations=np.array([count.operations for count in counts], np.float64),
        moved=np.array([count.moved for count in counts], np.float64),
        calls=_calls(trace),
        starts=np.ones(len(counts)),
        dispatched=np.zeros(len(counts)),
        forwards=np.ones(len(counts)),
        backwards=np.array(backwards, np.float64),
        joined=np.array(_joined(trace, wanted), np.float64),
        forward_seconds=np.array([forward for forward, _ in seconds], np.float64),
        backward_seconds=np.array([backward for _, backward in seconds], np.float64),
    )


def _calls(trace: "Trace") -> Column:
    """How many calls of submodules belong to each operator: the last one before they returned."""
    moments = [one.at for one in trace.operations]
    last = np.searchsorted(moments, [call.at for call in trace.calls]) - 1
    return np.bincount(np.maximum(last, 0), minlength=len(moments)).astype(np.float64)


def _itemsize(dtype: torch.dtype) -> int:
    return dtype.itemsize if dtype.is_floating_point else 4


def _joined(trace: "Trace", wanted: Collection[int]) -> list[float]:
    """What is read and written to add up the gradients of values that several operators read."""
    seen, found = set[int](), []
    for one in trace.operations:
        reads = {number for number in one.reads if number in wanted and one.count.moved}
        again = (number for number in reads if number in seen and number not in trace.own)
        found.append(3.0 * sum(trace.values[number].size for number in again))
        seen |= reads
    return found


def gradients(trace: "Trace", trained: Collection[str]) -> tuple[list[float], set[int]]:
    """How many times its forward the backward of each operator takes, and what wants gradients.

    That of a product is one product for each of its inputs that wants a gradient.
    """
    wanted = {number for number, name in trace.own.items() if name in trained}
    found = []
    for one in trace.operations:
        reads = wanted.intersection(one.reads)
        if not reads or not one.count.dtype.is_floating_point:
            found.append(0.0)
            continue
        wanted.update(one.makes)
        weights = any(number in trace.own for number in reads)  # a bias costs next to nothing
        inputs = weights + sum(number not in trace.own for number in reads)
        found.append(min(inputs, _MOST[one.count.kind]))
    return found, wanted
