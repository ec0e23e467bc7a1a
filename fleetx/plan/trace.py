"""A forward on tensors without numbers: what it computes, and what it keeps for its backward."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from fleetx.plan.operators import Count, Signature, counted, signature
from fleetx.torch_internals import (
    TorchDispatchMode,
    storage_number,
    tree_leaves,
)

Number = int
"""Names a piece of memory."""


@dataclass(frozen=True)
class Value:
    """A piece of memory that a forward made or was given."""

    size: int
    """In bytes."""
    given: bool = False
    """Whether it is the batch's own, of which every micro-batch is a view."""


@dataclass(frozen=True)
class Operation:
    """One operator of torch."""

    path: str
    """The innermost submodule that was running."""
    part: int
    reads: tuple[Number, ...]
    makes: tuple[Number, ...]
    """What it made anew; a view makes nothing."""
    at: int
    """When, counted in all that was noted."""
    count: Count
    """How much it computes and moves."""
    signature: Signature
    """With what it was called."""


@dataclass(frozen=True)
class Call:
    """One call of a submodule."""

    path: str
    part: int
    reads: tuple[Number, ...]
    makes: tuple[Number, ...]
    """What it returned."""
    at: int
    """When it returned, counted in all that was noted."""


@dataclass(frozen=True)
class Saved:
    """Something that autograd keeps until the backward comes by."""

    value: Number
    path: str
    """The innermost submodule in which it was saved."""
    part: int
    at: int
    """When, counted in all that was noted."""


@dataclass(frozen=True)
class Sent:
    """A tensor that travels from one part of the forward to the next."""

    size: int
    answered: bool
    """Whether a gradient comes back."""


@dataclass(frozen=True)
class Noted:
    """Some of what a forward did, in its order."""

    values: Sequence[tuple[Number, int]]
    """What it made, and how many bytes that has."""
    operations: Sequence[Operation]
    calls: Sequence[Call]
    saved: Sequence[Saved]
    lasted: int
    """How many moments."""


@dataclass
class Trace:
    """All that one forward did, in its order, its criterion included."""

    values: dict[Number, Value] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    own: dict[Number, str] = field(default_factory=dict)
    """Memory of parameters and buffers -> the name of the first that lies there."""
    sent: list[tuple[Sent, ...]] = field(default_factory=list)
    """What each part but the last sends to the one after it."""
    has_criterion: bool = False
    form: object = field(default_factory=object)
    """The same object for traces that differ in the size of the batch alone: with it one keeps what
    follows from numbers of memory, paths and moments, which they have in common."""

    @cached_property
    def part_of_each(self) -> NDArray[np.int64]:
        """The part of each operation."""
        return np.array([one.part for one in self.operations], np.int64)

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest piece of memory."""
        return max((value.size for value in self.values.values()), default=0)

    @property
    def model_ends(self) -> int:
        """The moment after which only the criterion's operators run."""
        return max((call.at for call in self.calls if not call.path), default=0)

    def is_like(self, other: "Trace") -> bool:
        """Whether the other did the same with a batch of another size."""
        lengths = (
            (len(one.values), len(one.operations), len(one.calls), len(one.saved), len(one.sent))
            for one in (self, other)
        )
        return len({*lengths}) == 1

    def grown(self, other: "Trace", times: float) -> "Trace":
        """What it would do with so many times more of what the other has more than it."""

        def more(own: int, others: int) -> int:
            return round(own + (others - own) * times)

        values = {
            number: own
            if own.size == others.size
            else Value(more(own.size, others.size), own.given)
            for (number, own), others in zip(
                self.values.items(), other.values.values(), strict=True
            )
        }
        operations = [
            own
            if own.count == others.count
            else replace(own, count=own.count.grown(others.count, more))
            for own, others in zip(self.operations, other.operations, strict=True)
        ]
        sent = [
            tuple(replace(a, size=more(a.size, b.size)) for a, b in zip(own, others, strict=True))
            for own, others in zip(self.sent, other.sent, strict=True)
        ]
        return replace(self, values=values, operations=operations, sent=sent)


class Tracing(TorchDispatchMode):
    """Notes what runs, and keeps all memory alive so that no number stands for two pieces."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self._alive: list[Tensor] = []
        self._path, self._part, self._events = [""], 0, 0
        self._fresh, self._is_paused = count(1), False
        named = (*model.named_parameters(), *model.named_buffers())
        for name, tensor in named:
            self.trace.own.setdefault(self._number(tensor), name)

    def given(self, batch: Any) -> None:
        """The tensors of the batch itself."""
        for number in self.numbers(tree_leaves(batch)):
            size = self.trace.values[number].size
            self.trace.values[number] = Value(size, given=True)

    def next_part(self, values: Sequence[Any]) -> list[Any]:
        """What is left here travels; returns what arrives there, where another part begins."""
        sent, received = [], []
        for value in values:
            if not isinstance(value, Tensor):
                received.append(value)
                continue
            size = value.numel() * value.element_size()
            sent.append(Sent(size, answered=value.requires_grad))
            arrived = torch.empty_like(value).detach().requires_grad_(value.requires_grad)
            received.append(arrived)
        self.trace.sent.append(tuple(sent))
        self._part += 1
        return received

    @property
    def now(self) -> int:
        """How many moments have passed."""
        return self._events

    def lengths(self) -> tuple[int, ...]:
        """How much was noted so far."""
        trace = self.trace
        noted = trace.values, trace.operations, trace.calls, trace.saved
        return (*map(len, noted), self._events)

    def since(self, before: tuple[int, ...]) -> Noted:
        """What was noted since there was so much."""
        values, operations, calls, saved, events = before
        trace = self.trace
        return Noted(
            [(number, value.size) for number, value in islice(trace.values.items(), values, None)],
            trace.operations[operations:],
            trace.calls[calls:],
            trace.saved[saved:],
            self._events - events,
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, nothing is noted."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def made(self, size: int, tensor: Tensor | None) -> Number:
        """Memory that was made, of a tensor or of one that is gone; returns its number."""
        number = next(self._fresh) if tensor is None else storage_number(tensor)
        if tensor is not None:
            self._alive.append(tensor)
        self.trace.values.setdefault(number, Value(size))
        return number

    def again(
        self, noted: Noted, numbers: Mapping[Number, Number], paths: tuple[str, str], *, since: int
    ) -> None:
        """The same happens in another place.

        Args:
            noted: what.
            numbers: its memory -> the memory there.
            paths: of the submodule in which it happened, and of the one in which it does now.
            since: the moment at which it began.
        """
        trace, part, later = self.trace, self._part, self._events - since
        old, new = paths

        def renumbered(many: tuple[Number, ...]) -> tuple[Number, ...]:
            return tuple(numbers.get(one, one) for one in many)

        def moved(path: str) -> str:
            is_inside = path == old or path.startswith(f"{old}.")
            return new + path[len(old) :] if is_inside else path

        for one in noted.operations:
            reads, makes = renumbered(one.reads), renumbered(one.makes)
            place = moved(one.path), part, reads, makes, one.at + later
            trace.operations.append(Operation(*place, one.count, one.signature))
        for call in noted.calls:
            reads, makes = renumbered(call.reads), renumbered(call.makes)
            trace.calls.append(Call(moved(call.path), part, reads, makes, call.at + later))
        for saved in noted.saved:
            value = numbers.get(saved.value, saved.value)
            trace.saved.append(Saved(value, moved(saved.path), part, saved.at + later))
        self._events += noted.lasted

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        """Inside, calls of submodules are noted."""
        handles: list[RemovableHandle] = []
        for path, module in model.named_modules():
            enter, leave = self._entered(path), self._left(path)
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entered(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._path.append(path)

        return enter

    def _left(self, path: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._path.pop()
            reads, makes = (
                self.numbers(tree_leaves((args, kwargs))),
                self.numbers(tree_leaves(output)),
            )
            self.trace.calls.append(Call(path, self._part, reads, makes, self._now()))

        return leave

    def _now(self) -> int:
        self._events += 1
        return self._events

    def pack(self, tensor: Tensor) -> Tensor:
        """Autograd saves something."""
        if self._is_paused:
            return tensor
        number = self._number(tensor)
        if number not in self.trace.own:
            self.trace.saved.append(Saved(number, self._path[-1], self._part, self._now()))
        return tensor

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._is_paused or func.namespace == "prim":  # questions, such as for a device
            return result
        reads, found = self.numbers(tree_leaves((args, kwargs))), self.numbers(tree_leaves(result))
        makes = tuple(number for number in found if number not in reads)
        counts = counted(func, args, kwargs or {}, result, is_view=not makes)
        called = signature(func, args, kwargs or {}, lambda t: reads.index(self._number(t)))
        operation = Operation(self._path[-1], self._part, reads, makes, self._now(), counts, called)
        self.trace.operations.append(operation)
        return result

    def numbers(self, leaves: Iterable[Any]) -> tuple[Number, ...]:
        """The memory of tensors, each once."""
        found = (leaf for leaf in leaves if isinstance(leaf, Tensor))
        return tuple(dict.fromkeys(map(self._number, found)))

    def _number(self, tensor: Tensor) -> Number:
        number = storage_number(tensor)
        if number not in self.trace.values:
            self._alive.append(tensor)
            self.trace.values[number] = Value(tensor.untyped_storage().nbytes())
        return number


Forward = Callable[[nn.Module, Any, Tracing], Any]
"""How a model is called with the inputs of a batch."""
Contexts = Sequence[Callable[[], AbstractContextManager[Any]]]
