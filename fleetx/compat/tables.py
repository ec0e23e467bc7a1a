"""Packages as tables: a name, and the module that has it, which is imported when it is used."""

import dis
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from fleetx.compat.moved_modules import elsewhere
from fleetx.near_names import near_names

HERE = "fleetx.compat."
_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


class _Serving:
    """Whether this process serves old scripts: tensors have Paddle's methods then."""

    on = False

    def start(self) -> None:
        """Serve from now on."""
        self.on = True
        self.tensors()

    def tensors(self) -> None:
        """Give tensors their methods, once torch is there: data generators do without it."""
        if self.on and "torch" in sys.modules:
            importlib.import_module(f"{HERE}tensors").install()

    def stop(self) -> None:
        """Take them away again."""
        self.on = False
        if f"{HERE}tensors" in sys.modules:
            sys.modules[f"{HERE}tensors"].uninstall()
        if f"{HERE}role_makers" in sys.modules:
            sys.modules[f"{HERE}role_makers"].forget()


serving = _Serving()


class UnknownName(AttributeError):
    """A script uses a name of Paddle that is not covered."""


def spelled(module: str) -> str:
    """The name under which a script imports a module of this package."""
    return module.removeprefix(HERE)


def table(
    package: str,
    names: Mapping[str, Sequence[str] | str],
    modules: Sequence[str] = (),
    starred: Sequence[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        names: module below ``fleetx.compat`` -> the names that it gives to the package, each as
            ``"name"``, or ``"name = its name there"``; a string has several, between spaces.
        modules: modules below the package, which are imported when they are asked for.
        starred: those of them that ``from package import *`` brings.
    """
    known = {name: (module, there) for module, name, there in _lines(names)}

    def look_up(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name == "__all__":  # what ``from package import *`` brings
            return [*(n for n in known if not n.startswith("_")), *starred]
        if name not in known:
            if moved := _moved(package, name):
                return moved
            raise unknown(package, name, [*known, *modules])
        module, there = known[name]
        found = getattr(importlib.import_module(HERE + module), there)
        serving.tensors()
        sys.modules[package].__dict__[name] = found
        return found

    return look_up, lambda: sorted([*known, *modules])


def _moved(package: str, name: str) -> ModuleType | None:
    """A module below a package that has a place elsewhere by now.

    ``from package import name`` looks below ``package.__name__``, and so past the import hook.
    """
    found = elsewhere(spelled(package), name)
    return importlib.import_module(HERE + found) if found else None


def _lines(names: Mapping[str, Sequence[str] | str]) -> list[tuple[str, str, str]]:
    found = []
    for module, listed in names.items():
        for entry in listed.split() if isinstance(listed, str) else listed:
            name, _, there = entry.partition("=")
            found.append((module, name.strip(), there.strip() or name.strip()))
    return found


def unknown(package: str, name: str, known: Sequence[str]) -> Exception:
    """The error for a name that is not covered, with the nearest that is, and the line."""
    if name.startswith("__"):
        return AttributeError(name)
    frame = sys._getframe(2)
    near = near_names(name, [n for n in known if not n.startswith("_")], most=1)
    text = (
        f"{frame.f_code.co_filename}:{frame.f_lineno}: {spelled(package)} has no {name!r} here; "
        f"{f'the nearest name that is covered is {near[0]!r}' if near else 'none is near it'}. "
        "`fleetx compat check` lists what a script uses and what of it is covered."
    )
    # ``from m import x`` hides the words of an AttributeError behind its own.
    if frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM:
        return ImportError(text)
    return UnknownName(text)


def closed(module: ModuleType) -> None:
    """Let a module that is no table say which name it has that is near to one it has not."""

    def look_up(name: str) -> Any:
        if moved := _moved(module.__name__, name):
            return moved
        raise unknown(module.__name__, name, list(vars(module)))

    vars(module).setdefault("__getattr__", look_up)
