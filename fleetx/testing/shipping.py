"""Functions, arguments and results on their way between the parent and its ranks.

What has an importable name travels as that name, with the file of its module. Lambdas, nested
functions and local classes travel as code and the values they hold.

Why not cloudpickle: for what has a name it sends the name alone, and a rank that is no child of
pytest could not import a test module under it, nor with the assertions that pytest rewrote.
"""

import builtins
import importlib
import io
import marshal
import pickle
import sys
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

from typing_extensions import override

from fleetx.testing.sources import MAIN, MAIN_IN_RANKS, Source, describe, load

_OUTCOMES = "_pytest.outcomes"
_CLASS_MACHINERY = ("__dict__", "__weakref__", "_abc_impl")


def dumps(value: object) -> bytes:
    """`value` as bytes that `loads` understands in another process of this machine."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(value)
    return pickle.dumps((list(sys.path), pickler.modules, buffer.getvalue()))


def loads(data: bytes, *, share_path: bool = False) -> Any:
    """The value that `dumps` packed; `share_path` also takes over the sender's import path."""
    path, modules, body = pickle.loads(data)
    if share_path and sys.path != path:
        sys.path[:] = path
    for name, source in modules.items():
        load(_here(name), source)
    return _Unpickler(io.BytesIO(body)).load()


class _Unpickler(pickle.Unpickler):
    @override
    def find_class(self, module_name: str, global_name: str) -> Any:
        return super().find_class(_here(module_name), global_name)


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.modules: dict[str, Source] = {}

    @override
    def reducer_override(self, obj: Any) -> Any:  # the names are pickle's
        if isinstance(obj, FunctionType):
            return NotImplemented if self._has_name(obj) else _take_apart_function(obj)
        if isinstance(obj, type):
            if _is_outcome(obj):
                return getattr, (sys.modules[_OUTCOMES], obj.__name__)
            return NotImplemented if self._has_name(obj) else _take_apart_class(obj)
        if isinstance(obj, ModuleType):
            return importlib.import_module, (obj.__name__,)
        return _take_apart_member(obj)

    def _has_name(self, obj: Any) -> bool:
        """Whether the other process finds `obj` by module and name; notes the module's file."""
        name = obj.__module__ or MAIN
        source = describe(name)
        self.modules.setdefault(name, source)
        if name == MAIN and source.path is None:
            return False
        is_local = "<locals>" in _qualname(obj)
        return _is_reachable(obj, name) or (isinstance(obj, type) and not is_local)


def _is_outcome(cls: type) -> bool:
    """Whether `cls` is pytest's skip or xfail, which pretend to be builtins."""
    return cls.__module__ == "builtins" and _is_reachable(cls, _OUTCOMES)


def _qualname(obj: Any) -> str:
    return str(getattr(obj, "__qualname__", obj.__name__))


def _is_reachable(obj: Any, module_name: str) -> bool:
    found: Any = sys.modules.get(module_name)
    for part in _qualname(obj).split("."):
        found = getattr(found, part, None)
    return found is obj


def _here(module_name: str) -> str:
    """The main module of the parent, which ranks know by another name."""
    if module_name == MAIN_IN_RANKS and MAIN_IN_RANKS not in sys.modules:
        return MAIN
    return module_name


def _take_apart_function(function: FunctionType) -> tuple[Any, ...]:
    module = function.__module__ or MAIN
    names = _global_names(function.__code__) if describe(module).path is None else set()
    state = {
        "defaults": function.__defaults__,
        "kwdefaults": function.__kwdefaults__,
        "cells": [_contents(cell) for cell in function.__closure__ or ()],
        "globals": {k: v for k, v in function.__globals__.items() if k in names},
    }
    code = marshal.dumps(function.__code__)
    parts = (code, module, function.__name__, function.__qualname__, len(state["cells"] or ()))
    # The state follows the function, so that a function may hold itself in a cell.
    return _make_function, parts, state, None, None, _fill_function


def _make_function(
    code: bytes, module: str, name: str, qualname: str, cells: int
) -> Callable[..., Any]:
    closure = tuple(CellType() for _ in range(cells))
    scope = vars(sys.modules[_here(module)])
    function = FunctionType(marshal.loads(code), scope, name, None, closure)
    function.__qualname__ = qualname
    return function


def _fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    for cell, content in zip(function.__closure__ or (), state["cells"], strict=True):
        if content:
            cell.cell_contents = content[0]
    function.__globals__.update(state["globals"])


def _contents(cell: CellType) -> tuple[Any, ...]:
    """The content as a tuple of one, or of none while the variable has no value yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _global_names(code: CodeType) -> set[str]:
    """Names that `code` and the functions inside it may look up in their module."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names - set(vars(builtins))


def _take_apart_member(member: Any) -> Any:
    """What classes are made of, as far as pickle does not know it."""
    if isinstance(member, staticmethod | classmethod):
        return type(member), (member.__func__,)
    if isinstance(member, property):
        return property, (member.fget, member.fset, member.fdel, member.__doc__)
    if isinstance(member, MappingProxyType):
        return MappingProxyType, (dict(member),)
    return NotImplemented


def _take_apart_class(cls: type) -> tuple[Any, ...]:
    members = {k: v for k, v in vars(cls).items() if k not in _CLASS_MACHINERY}
    parts = (type(cls), cls.__name__, cls.__bases__, cls.__module__, cls.__qualname__)
    return _make_class, parts, members, None, None, _fill_class


def _make_class(
    meta: Callable[..., type], name: str, bases: tuple[type, ...], module: str, qualname: str
) -> type:
    return meta(name, bases, {"__module__": module, "__qualname__": qualname})


def _fill_class(cls: type, members: dict[str, Any]) -> None:
    for name, value in members.items():
        setattr(cls, name, value)
