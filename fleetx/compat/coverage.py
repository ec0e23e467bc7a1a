"""``python -m fleetx.compat.coverage``: the names that are covered, by module, as a table."""

import importlib
import inspect
from types import ModuleType
from typing import Any

from fleetx.compat import imports
from fleetx.compat.checking import served
from fleetx.compat.moved_modules import MOVED
from fleetx.compat.tables import spelled

DEEPEST = 3
"""Modules below this many dots hold what those above them show."""


def covered() -> dict[str, list[str]]:
    """Module that a script may import -> the names that it has."""
    with served():
        own = [name for name in imports.modules() if name not in MOVED]
        found = {name: names_of(importlib.import_module(name)) for name in own}
    return {module: names for module, names in found.items() if names}


def names_of(module: ModuleType) -> list[str]:
    """The names of a module that are its own, or in its table."""
    below = {name.rpartition(".")[2] for name in imports.modules() if name.startswith(_own(module))}
    shown = [name for name in dir(module) if not name.startswith("_") and name not in below]
    if "__all__" in vars(module):
        return sorted(module.__all__)
    if "__dir__" in vars(module):  # a table
        return [n for n in shown if not inspect.ismodule(_value(module, n))]
    return [n for n in shown if _is_of(_value(module, n), module)]


def _own(module: ModuleType) -> str:
    return f"{spelled(module.__name__)}."


def _value(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except Exception:
        return None  # it is there, and needs a job or a program to say more


def _is_of(value: Any, module: ModuleType) -> bool:
    return not inspect.ismodule(value) and getattr(value, "__module__", "") == module.__name__


def table() -> str:
    """The table of ``docs/migrating.md``."""
    found = covered()
    rows = [
        f"| `{module}` | {len(names)} | {', '.join(names)} |"
        for module, names in found.items()
        if module.count(".") <= DEEPEST
    ]
    total = sum(map(len, found.values()))
    head = [f"{total} names in {len(found)} modules:", "", "| module | names | |", "|---|---|---|"]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    print(table())
