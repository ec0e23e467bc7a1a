"""Where the module of a function lives, and how another process loads the same module."""

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

MAIN = "__main__"
# The name that multiprocessing gives a main module loaded a second time: `if __name__ ==
# "__main__"` must not be true in a rank.
MAIN_IN_RANKS = "__mp_main__"
_SHARED = ("torch", "numpy", "fleetx", "pytest", "_pytest")
# Inductor starts compile workers of its own, and a process that forks must have one thread.
_NOT_SHARED = ("torch._inductor", "fleetx.testing")


@dataclass(frozen=True, slots=True)
class Source:
    """The file of a module, and whether pytest rewrote its assertions."""

    path: str | None
    rewritten: bool = False


def describe(name: str) -> Source:
    """The source of the module `name` as this process has loaded it."""
    module = sys.modules.get(name)
    path = _file_of(module) if module else None
    return Source(path, rewritten=module is not None and "@pytest_ar" in vars(module))


def load(name: str, source: Source) -> ModuleType:
    """The module `name`, from this process, by its name, or from its file, in that order.

    A test module that pytest loaded in importlib mode often has no importable name, hence the
    file.
    """
    module = sys.modules.get(name)
    if module and (source.path is None or _file_of(module) == source.path):
        return module
    if source.path is None:
        return importlib.import_module(name)
    if name != MAIN and not source.rewritten:
        module = _import(name)
        if module and _file_of(module) == source.path:
            return module
    return _execute(MAIN_IN_RANKS if name == MAIN else name, source.path, source.rewritten)


def shared_modules() -> list[str]:
    """The modules of torch, numpy, pytest and fleetx that this process has loaded.

    Ranks will need them too: loading them once, before the ranks are forked, saves each rank the
    time.
    """
    return [
        name
        for name in list(sys.modules)
        if name.split(".", 1)[0] in _SHARED and not name.startswith(_NOT_SHARED)
    ]


def preload(names: Iterable[str]) -> None:
    """Import what can be imported of `names`."""
    for name in names:
        if name not in sys.modules:
            _import(name)


def _file_of(module: ModuleType) -> str | None:
    path = getattr(module, "__file__", None)
    return os.path.realpath(path) if path and os.path.exists(path) else None


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # the caller has another way, or can do without
        return None


def _execute(name: str, path: str, rewritten: bool) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(name)
    sys.modules[name] = module
    try:
        if rewritten:
            _execute_rewritten(module, path)
        else:
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if previous:
            sys.modules[name] = previous
        raise
    if name == MAIN_IN_RANKS:
        sys.modules[MAIN] = module
    return module


def _execute_rewritten(module: ModuleType, path: str) -> None:
    """Run a test module with pytest's explained assertions, as the parent did."""
    from _pytest.assertion.rewrite import rewrite_asserts

    with open(path, "rb") as file:
        source = file.read()
    tree = ast.parse(source)
    rewrite_asserts(tree, source, path)
    exec(compile(tree, path, "exec", dont_inherit=True), vars(module))
