"""Packages whose name is also that of a public call: ``fleet.plan(...)`` and ``fleetx.plan``."""

import importlib
import sys
import types
from typing import Any

from typing_extensions import override


def let_call(package: str, module: str, function: str) -> None:
    """Let a package be called, too: its calls go to a function, which is loaded by then."""

    class CallableRoom(types.ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(module), function)(*args, **kwargs)

        @override
        def __reduce__(self) -> tuple[Any, ...]:
            # Whoever pickles functions with the modules that they use knows plain modules alone.
            return importlib.import_module, (package,)

    sys.modules[package].__class__ = CallableRoom
