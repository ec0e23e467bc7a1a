"""The import hook: ``import paddle`` finds this package, in processes that ask for it."""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from typing_extensions import override

from fleetx.compat import old_names
from fleetx.compat.fleetx_1 import names as fleetx_1
from fleetx.compat.moved_modules import MOVED, has_moved_below, resolved
from fleetx.compat.tables import HERE, closed, serving
from fleetx.near_names import near_names

SERVED = ("paddle", "paddlenlp")
"""Top modules that scripts of old days import, and find here."""

LAST = {
    "six": f"{HERE}six",
    "six.moves": f"{HERE}six.moves",
    "six.moves.cPickle": "pickle",
    "six.moves.queue": "queue",
    "six.moves.builtins": "builtins",
    "six.moves.configparser": "configparser",
    "six.moves.urllib": "urllib",
    "six.moves.urllib.request": "urllib.request",
    "six.moves.urllib.parse": "urllib.parse",
    "six.moves.urllib.error": "urllib.error",
}
"""What came with Paddle, and is found here where the machine does not have it."""

BESIDE = "fleetx"
"""Modules of FleetX 1 that fleetx itself does not have are served beside its own."""

ENTRY = Path(__file__).parent / "path"
"""A folder for ``PYTHONPATH``: processes that a script starts find ``paddle`` by it."""


class _Loader(importlib.abc.Loader):
    """Gives a module of this package another name."""

    def __init__(self, module: str) -> None:
        self._module = module

    @override
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    @override
    def exec_module(self, module: ModuleType) -> None:
        found = importlib.import_module(self._module)
        if self._module.startswith(HERE):
            closed(found)
        serving.tensors()
        # The import system takes what stands here when a module has run.
        if has_moved_below(module.__name__) and not hasattr(found, "__path__"):
            found.__path__ = []  # the import system asks for it before it looks below
        sys.modules[module.__name__] = found

    def get_code(self, fullname: str) -> Any:
        """What ``python -m`` runs."""
        path = _file(self._module)
        file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        return compile(file.read_bytes(), str(file), "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = fullname.partition(".")[0]
        if (top not in SERVED and top != BESIDE) or f"{fullname}.".startswith(HERE):
            return None
        inner = HERE + (
            resolved(fullname) if top in SERVED else f"fleetx_1.{fullname.partition('.')[2]}"
        )
        if not _exists(inner):
            if top == BESIDE:
                return None
            raise ModuleNotFoundError(_missing(fullname), name=fullname)
        return importlib.machinery.ModuleSpec(
            fullname,
            _Loader(inner),
            is_package=_is_package(inner) or has_moved_below(fullname),
        )


class _Last(importlib.abc.MetaPathFinder):
    """Asked when nobody else has a module."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in LAST:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in LAST)
        return importlib.machinery.ModuleSpec(
            fullname, _Loader(LAST[fullname]), is_package=is_package
        )


def _file(module: str) -> Path:
    return Path(__file__).parent.joinpath(*module.removeprefix(HERE).split("."))


def _exists(module: str) -> bool:
    # Files are looked at, because asking the import system would ask this finder again.
    return _is_package(module) or _file(module).with_suffix(".py").exists()


def _is_package(module: str) -> bool:
    return (_file(module) / "__init__.py").exists()


def _missing(fullname: str) -> str:
    near = near_names(fullname, modules(), most=1)
    hint = f"; the nearest that is covered is {near[0]!r}" if near else ""
    return (
        f"there is no {fullname!r} here{hint}. `fleetx compat check` lists what a script uses and "
        "what of it is covered."
    )


def modules() -> list[str]:
    """Every module that can be imported, by the name that scripts use."""
    root = Path(__file__).parent
    files = (path for top in SERVED for path in (root / top).rglob("*.py"))
    dotted = (".".join(path.relative_to(root).with_suffix("").parts) for path in files)
    return sorted([*(name.removesuffix(".__init__") for name in dotted), *MOVED])


_finder, _last = _Finder(), _Last()
_brought: dict[str, tuple[str | None, str]] = {}
"""Variable of the environment -> its value before the hook, and with it."""


def installed() -> bool:
    """Whether this process finds ``paddle`` here."""
    return _finder in sys.meta_path


def install() -> None:
    """Let this process, and those that it starts, find ``paddle`` here."""
    if not installed():
        for name in [n for n in sys.modules if n.partition(".")[0] in SERVED]:
            del sys.modules[name]  # another paddle, imported before
        sys.meta_path.insert(0, _finder)
        sys.meta_path.append(_last)
        if str(ENTRY) not in sys.path:
            # Processes that multiprocessing spawns search where this one does, by this list.
            sys.path.insert(1, str(ENTRY))
        old_names.install()
        serving.start()
        fleetx_1.attach()
        for name, value in environment(os.environ).items():
            _brought[name] = os.environ.get(name), value
            os.environ[name] = value


def uninstall() -> None:
    """Take the hook away again, for tests."""
    if installed():
        sys.meta_path.remove(_finder)
        sys.meta_path.remove(_last)
        for name in [n for n in LAST if sys.modules.get(n) is sys.modules.get(LAST[n])]:
            sys.modules.pop(name, None)
        if str(ENTRY) in sys.path:
            sys.path.remove(str(ENTRY))
        serving.stop()
        fleetx_1.detach()
        old_names.uninstall()
        for name in [n for n in sys.modules if n.partition(".")[0] in SERVED]:
            del sys.modules[name]
        _restore_environment()


def _restore_environment() -> None:
    """The variables as they were, unless a script has changed them since."""
    for name, (before, brought) in _brought.items():
        if os.environ.get(name) != brought:
            continue
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
    _brought.clear()


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with which another process finds ``paddle`` here."""
    paths = [p for p in environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    entry = str(ENTRY)
    others = [p for p in paths if p != entry]
    return {"PYTHONPATH": os.pathsep.join([entry, *others])}
