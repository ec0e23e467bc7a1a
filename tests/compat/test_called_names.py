"""How many names of Paddle that real scripts use are called in these tests, with their keywords.

The tests are read, as ``fleetx compat check`` reads scripts: a name counts if a call of it, or of
another name of the same thing, stands in a test or in one of its scripts with every keyword that
occurs in ``data/names.json``.
"""

import ast
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetx.compat.checking import UNKNOWN, Missing, _listed, resolve
from fleetx.compat.uses import uses
from tests.compat.test_names import NOT_COVERED, NOT_TAKEN

HERE = Path(__file__).parent
NAMES: list[dict[str, Any]] = json.loads((HERE / "data" / "names.json").read_text())["names"]
PLAIN = (bool, int, float, str, type(None))


@dataclass
class Called:
    """What tests do with one thing."""

    called: bool = False
    keywords: set[str] = field(default_factory=set)


def identity(name: str) -> object:
    """The same for all names of one thing; the name itself for what cannot be told apart."""
    try:
        found = resolve(name)
    except Missing:
        return name
    found = getattr(found, "__func__", found)
    return name if found is UNKNOWN or isinstance(found, PLAIN) else id(found)


def calls() -> dict[object, Called]:
    """What the tests call, and scripts that they run."""
    found: dict[object, Called] = defaultdict(Called)
    for file in (*HERE.glob("*.py"), *HERE.glob("scripts/*.py")):
        for use in uses(ast.parse(file.read_text(encoding="utf-8")), _listed):
            thing = found[identity(use.name)]
            thing.called |= bool(use.calls)
            thing.keywords |= {keyword for call in use.calls for keyword in call.keywords}
    return found


def uncalled() -> dict[str, str]:
    """Names that no test calls so, and what is missing."""
    known, missing = calls(), {}
    for entry in NAMES:
        name, thing = entry["name"], known.get(identity(entry["name"]))
        passed = {*entry["keywords"]} - {*NOT_TAKEN.get(name, {})}
        if name in NOT_COVERED:
            missing[name] = NOT_COVERED[name]
        elif thing is None:
            missing[name] = "no test names it"
        elif (entry["positions"] or passed) and not thing.called:
            missing[name] = "no test calls it"
        elif lost := passed - thing.keywords:
            missing[name] = f"no test passes {', '.join(sorted(lost))}"
    return missing


def test_names_are_called_with_the_keywords_of_scripts() -> None:
    missing = uncalled()
    assert len(NAMES) - len(missing) >= 480, missing
    often = {entry["name"] for entry in NAMES if entry["files"] >= 10}
    assert not often & {*missing}, {name: missing[name] for name in often & {*missing}}
