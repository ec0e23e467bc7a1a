"""A forward on tensors without numbers: what it computes, and what it keeps for its backward."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from typing_extensions import override

from fleetx.torch_internals import (
    FakeTensorMode,
    TorchDispatchMode,
    storage_number,
    tree_leaves,
    tree_map,
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


class Tracing(TorchDispatchMode):
    """Notes what runs, and keeps all memory alive so that no number stands for two pieces."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = Trace()
        self._alive: list[Tensor] = []
        self._path, self._part, self._events = [""], 0, 0
        named = (*model.named_parameters(), *model.named_buffers())
        for name, tensor in named:
            self.trace.own.setdefault(self._number(tensor), name)

    def given(self, batch: Any) -> None:
        """The tensors of the batch itself."""
        for number in self._numbers(batch):
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

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        """Inside, calls of submodules are noted."""
        handles = []
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
            reads, makes = self._numbers((args, kwargs)), self._numbers(output)
            self.trace.calls.append(Call(path, self._part, reads, makes, self._now()))

        return leave

    def _now(self) -> int:
        self._events += 1
        return self._events

    def pack(self, tensor: Tensor) -> Tensor:
        """Autograd saves something."""
        number = self._number(tensor)
        if number not in self.trace.own:
            self.trace.saved.append(Saved(number, self._path[-1], self._part, self._now()))
        return tensor

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        reads, found = self._numbers((args, kwargs)), self._numbers(result)
        makes = tuple(number for number in found if number not in reads)
        self.trace.operations.append(Operation(self._path[-1], self._part, reads, makes))
        return result

    def _numbers(self, tree: Any) -> tuple[Number, ...]:
        found = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
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


class Fakes:
    """Tensors without numbers, on the device on which the model would compute."""

    def __init__(self, device: torch.device) -> None:
        self._mode, self._device = FakeTensorMode(allow_non_fake_inputs=True), device

    def of(self, tree: Any) -> Any:
        """The same with its tensors without numbers; parameters stay parameters."""
        return tree_map(lambda leaf: self._fake(leaf) if isinstance(leaf, Tensor) else leaf, tree)

    def _fake(self, tensor: Tensor) -> Tensor:
        with self._mode:
            made = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device
            )
            if isinstance(tensor, nn.Parameter):
                return nn.Parameter(made, requires_grad=tensor.requires_grad)
            return made.requires_grad_(tensor.requires_grad)

    def trace(
        self,
        model: nn.Module,
        batch: tuple[Any, Any],
        *,
        forward: Forward,
        contexts: Contexts,
        criterion: Callable[[Any, Any], Any] | None,
    ) -> Trace:
        """What a forward of a model without numbers does, and its criterion after it."""
        inputs, targets = batch
        tracing = Tracing(model)
        tracing.given(batch)
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(self._mode)
            stack.enter_context(saved_tensors_hooks(tracing.pack, lambda tensor: tensor))
            stack.enter_context(tracing.listening(model))
            stack.enter_context(tracing)
            with ExitStack() as around:
                for context in contexts:
                    around.enter_context(context())
                outputs = forward(model, inputs, tracing)
            if criterion is not None:
                criterion(outputs, targets)
            tracing.trace.has_criterion = criterion is not None or _loss_of(outputs) is not None
        return tracing.trace


def _loss_of(outputs: Any) -> Any:
    return outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
