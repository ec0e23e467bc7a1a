"""Calls of the user's own modules, kept so that a clone for tests can record them again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from fleetx.record.argument_names import is_switched
from fleetx.record.autocast import DEVICES, autocast_in_force
from fleetx.record.custom_evaluation import evaluate, own_mode_line
from fleetx.record.functional_calls import Tensors, owned, owning
from fleetx.record.source_lines import user_line
from fleetx.record.training_flag_lines import choosing_line, handing_line
from fleetx.torch_internals import tree_map

Key = tuple[str, int]
"""The path of a module, and how many calls of it were before, inside of one outermost call."""


@dataclass
class Call:
    """A call of a module that no other module's forward makes, and everything it was made under."""

    module: nn.Module
    path: str
    args: Any
    kwargs: Any
    startup: Callable[[], Any]
    """Gives the program that holds the first values of layers."""
    device: str | None
    grad: bool = field(default_factory=torch.is_grad_enabled)
    autocast: tuple[str, torch.dtype] | None = field(default_factory=autocast_in_force)
    owned: Tensors = field(default_factory=owned)
    """What modules hold themselves that were given other weights."""
    asked: str | None = None
    """The line that found a module in training mode and may have chosen by it."""
    modes: dict[nn.Module, bool] = field(default_factory=dict)
    """Modules whose mode was asked for since the last node was made, with the answer."""
    end: fx.Node | None = None
    """The last node of the program when it returned."""
    own: dict[Key, list[fx.Node]] = field(default_factory=dict)
    """Call of a module -> the nodes that its own forward made, without those of calls in it."""
    returned: dict[Key, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The containers are the caller's, who may change them before a clone is made.
        self.args, self.kwargs = tree_map(lambda leaf: leaf, (self.args, self.kwargs))
        self._parts = [(part, _attributes(part)) for part in self.module.modules()]
        self.own_mode = own_mode_line(self.module)
        """Where a ``train()`` or ``eval()`` of its own is, which may do more than to set flags."""

    @property
    def line(self) -> str | None:
        """Why a clone for tests may have to record it again; None where it need not."""
        return self.asked or self.own_mode

    def nodes(self) -> list[fx.Node]:
        """Everything that it recorded, save sizes, which whole programs share."""
        return [node for nodes in self.own.values() for node in nodes]

    def changes_nothing(self, quiet: AbstractContextManager[object]) -> bool:
        """Whether it was kept for a method of its own that only sets flags, as torch's does."""
        if self.asked is not None:
            return False
        with self._in_evaluation(quiet):
            return all(
                not part.training
                and all(
                    value is attributes.get(name)
                    for name, value in vars(part).items()
                    if not isinstance(value, _CONTAINERS) and name != "training"
                )
                for part, attributes in self._parts
            )

    @contextmanager
    def _in_evaluation(self, quiet: AbstractContextManager[object]) -> Iterator[None]:
        """Modules as they were then, but in evaluation mode; ``quiet`` while they enter it."""
        now = [(part, dict(vars(part))) for part, _ in self._parts]
        try:
            for part, attributes in self._parts:
                _become(part, _copied(attributes) | {"training": False})
            if self.own_mode is not None:
                for part, attributes in self._parts:
                    part.training = attributes["training"]
                with quiet:
                    evaluate(self.module)
            yield
        finally:
            for part, attributes in now:
                _become(part, attributes)

    @contextmanager
    def as_it_was(self, quiet: AbstractContextManager[object]) -> Iterator[None]:
        """Modules and modes of torch as they were then, but in evaluation mode."""
        with (
            self._in_evaluation(quiet),
            _autocast(self.autocast),
            torch.set_grad_enabled(self.grad),
            owning(self.owned),
        ):
            yield


_CONTAINERS = (dict, list, set)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return _copied(vars(module))


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    """What a module holds, with containers of their own: hooks and children may change."""
    return {k: v.copy() if isinstance(v, _CONTAINERS) else v for k, v in attributes.items()}


def _become(module: nn.Module, attributes: dict[str, Any]) -> None:
    vars(module).clear()
    vars(module).update(attributes)


@contextmanager
def _autocast(wanted: tuple[str, torch.dtype] | None) -> Iterator[None]:
    with ExitStack() as stack:
        for device in DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if wanted is not None:
            device, dtype = wanted
            stack.enter_context(torch.autocast(device, dtype))
        yield


class _Now(threading.local):
    """The call that is being recorded."""

    call: Call | None = None
    keys: tuple[Key, ...] = ()
    counts: dict[str, int]
    noticing = True


_now = _Now()


@contextmanager
def recording(call: Call) -> Iterator[None]:
    """Note what the call makes, and whether anything in it asks for the mode of a module."""
    # For the time of one call, reading ``training`` of any module goes through ``_Training``. The
    # flags stay where they are, in the dictionaries of the modules, so every reader gets what it
    # would have got, other threads too. A class with a ``training`` of its own is not seen.
    before = nn.Module.__dict__.get("training")
    _now.call, _now.counts = call, {}
    nn.Module.training = _Training()  # type: ignore[assignment]
    try:
        yield
    finally:
        _now.call = None
        if before is None:
            del nn.Module.training
        else:
            nn.Module.training = before


@contextmanager
def inside(path: str) -> Iterator[Callable[[Any], None]]:
    """The forward of one module; takes what it returned."""
    call, keys = _now.call, _now.keys
    assert call is not None
    key = path, _now.counts.get(path, 0)
    _now.counts[path] = key[1] + 1
    _now.keys = (*keys, key)
    try:
        yield lambda made: call.returned.__setitem__(key, made)
    finally:
        _now.keys = keys


def mark(node: fx.Node) -> None:
    """Note that a node was made, by whichever module is being called."""
    if _now.call is not None and _now.keys:
        node.meta["nn_module_stack"] = {
            f"{path}@{count}" if count else path: (path, nn.Module) for path, count in _now.keys
        }
        if node.op.startswith("call") and _now.call.modes:
            node.meta["asked"], _now.call.modes = _now.call.modes, {}
        _now.call.own.setdefault(_now.keys[-1], []).append(node)
        node.meta["in_module"] = True
    elif (line := choosing_line()) is not None:
        node.meta["chosen"] = line
    elif _is_chosen(node) and (line := handing_line()) is not None:
        node.meta["handed"] = line


def _is_chosen(node: fx.Node) -> bool:
    """Whether it stays what it is in a clone for tests, which switches some functions itself."""
    function = node.target if node.op == "call_function" else None
    return node.op.startswith("call") and not (callable(function) and is_switched(function))


@contextmanager
def one_operator() -> Iterator[None]:
    """What runs inside decides by its mode at every run, not while it is recorded."""
    before, _now.noticing = _now.noticing, False
    try:
        yield
    finally:
        _now.noticing = before


class _Training:
    """``training`` of all modules, while a call is recorded."""

    def __get__(self, module: nn.Module | None, owner: type) -> Any:
        if module is None or "training" not in vars(module):
            raise AttributeError("training")
        found = vars(module)["training"]
        if _now.noticing and _now.call is not None:
            _now.call.modes[module] = found
        if found and _now.noticing and _now.call is not None and _now.call.asked is None:
            _now.call.asked = user_line()
        return found

    def __set__(self, module: nn.Module, mode: bool) -> None:
        vars(module)["training"] = mode
