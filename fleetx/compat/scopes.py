"""Scopes in Paddle's words: values by name, to look at and to write."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from fleetx.compat import parameters
from fleetx.compat.lod_tensors import LoDTensor
from fleetx.compat.sizes import CalledSizes
from fleetx.record.error import ProgramError
from fleetx.record.recording_state import paused
from fleetx.static.run import scope as programs

Get = Callable[[], Any]
Set = Callable[[Any], None]

_registered: dict[str, tuple[Get, Set | None]] = {}
"""Values that are no parameters, such as learning rates."""


def register(name: str, get: Get, set: Set | None = None) -> None:
    """Let scripts find a value that something else keeps."""
    _registered[name] = get, set


class ScopeName(str):
    """The name of such a value, to fetch it by; it has a name as variables have."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Itself."""
        return str(self)


def registered(name: str) -> bool:
    """Whether a value lives elsewhere under this name."""
    return name in _registered


def named(name: str, get: Get) -> ScopeName:
    """Let scripts find a value, and fetch it by what is returned."""
    register(name, get)
    return ScopeName(name)


def forget() -> None:
    """Begin as a new process does."""
    _registered.clear()


class _Kept(LoDTensor):
    """A value that lives elsewhere: read and written there."""

    def __init__(self, get: Get, set: Set | None) -> None:
        super().__init__()
        self._get, self._set = get, set

    @override
    def tensor(self) -> torch.Tensor:
        with paused():  # looking at a value is no part of a program that is written
            found = self._get()
        return found if isinstance(found, torch.Tensor) else torch.as_tensor(np.asarray(found))

    @override
    def set(self, array: Any, place: Any = None) -> None:
        if self._set is None:
            raise ProgramError("this value follows from others, so it cannot be set; set those.")
        with paused():
            self._set(array)

    @property
    @override
    def shape(self) -> CalledSizes:
        """The sizes."""
        return CalledSizes(self.tensor().shape)


class ScopeVariable:
    """What ``find_var`` finds."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def name(self) -> str:
        """Its name."""
        return self._name

    def get_tensor(self) -> Any:
        """Its numbers."""
        return self._value

    def set(self, value: Any, place: Any = None) -> None:
        """Overwrite the numbers, for scripts that leave ``get_tensor`` out."""
        self._value.set(value, place)

    def _get_dims(self) -> list[int]:
        return list(self._value.shape())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._value, dtype=dtype)


class Scope(parameters.Scope):
    """Values by name; parameters of programs that were written under it among them."""

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[str, ScopeVariable] = {}
        """What scripts put here themselves."""

    def find_var(self, name: str) -> ScopeVariable | None:
        """A value, or None if there is none of that name."""
        return find(self, name)

    def var(self, name: str) -> ScopeVariable:
        """A value, made if there is none."""
        found = self.find_var(name)
        if found is None:
            found = self.own[name] = ScopeVariable(name, LoDTensor())
        return found

    def new_scope(self) -> "Scope":
        """Another one."""
        return Scope()

    def drop_kids(self) -> None:
        """Scopes below this one have nothing to free."""

    def local_var_names(self) -> list[str]:
        """The names in it."""
        return [*self.parameters, *self.own]


def find(scope: parameters.Scope, name: str) -> ScopeVariable | None:
    """What a scope has under a name."""
    if name in scope.parameters:
        return ScopeVariable(name, _parameter(scope, name))
    if name in _registered:
        return ScopeVariable(name, _Kept(*_registered[name]))
    own = getattr(scope, "own", {})
    if name in own:
        return own[name]  # type: ignore[no-any-return]
    ran = scope.attachments.get(programs.Scope)
    try:
        return None if ran is None else ScopeVariable(name, _of_program(ran.find_var(name)))
    except ProgramError:
        return None


def _parameter(scope: parameters.Scope, name: str) -> _Kept:
    initial = scope.parameters[name]
    state = initial.state
    if state is not None and name in state.persistent():
        return _of_program(programs.Value(state, name), initial)
    value = initial.module.get_parameter("value")
    return _Kept(value.detach, lambda given: _write(value, given, initial))


def _of_program(value: programs.Value, initial: Any = None) -> _Kept:
    def write(given: Any) -> None:
        value.set(np.asarray(given))
        if initial is not None:
            initial.done = True

    return _Kept(lambda: torch.as_tensor(np.asarray(value)), write)


def _write(target: torch.Tensor, given: Any, initial: Any) -> None:
    with torch.no_grad():
        target.copy_(torch.as_tensor(np.asarray(given)).reshape(target.shape))
    initial.done = True


def global_scope() -> Scope:
    """The scope in force."""
    current = parameters.current_scope()
    return current if isinstance(current, Scope) else _of(current)


def _of(scope: parameters.Scope) -> Scope:
    """A scope that fleetx.compat made, in Paddle's words."""
    made = _wrapped.get(id(scope))
    if made is None or made.parameters is not scope.parameters:
        made = Scope()
        made.parameters, made.attachments = scope.parameters, scope.attachments
        _wrapped[id(scope)] = made
    return made


_wrapped: dict[int, Scope] = {}


@contextmanager
def scope_guard(scope: parameters.Scope) -> Iterator[None]:
    """Values inside are those of this scope."""
    with parameters.scope_of_its_own(scope):
        yield
