"""Every name of Paddle that real Fleet scripts use is there, and takes the keywords that occur.

``data/names.json`` was extracted from PaddleFleetX and the five documents: each name with the
number of files that use it, the numbers of arguments without a name, and the keywords.
"""

import inspect
import json
from pathlib import Path
from typing import Any

from fleetx.compat.checking import UNKNOWN, Missing, most_positional, not_taken, resolve, signature

DATA = json.loads((Path(__file__).parent / "data" / "names.json").read_text())
NAMES: list[dict[str, Any]] = DATA["names"]
METHODS: list[dict[str, Any]] = DATA["methods"]

NOT_COVERED: dict[str, str] = {
    "paddle.fluid.fluid.optimizer.SGD": "a slip of a script: Paddle never had fluid inside fluid",
    (
        "paddle.fluid.transpiler.distribute_transpiler.distributed_strategy."
        "StrategyFactory.create_async_strategy"
    ): "a slip of a document: StrategyFactory lies in paddle.fluid.incubate.fleet",
}
"""Name -> why it is not covered."""

NOT_TAKEN: dict[str, dict[str, str]] = {
    "paddle.fluid.layers.dropout": {"input": "Paddle calls it x; the script fails there too"},
}
"""Name -> keyword -> why it is not taken."""

_OWN = "a class of the script, of which HDFSClient is the base, has it"
METHODS_NOT_COVERED: dict[str, str] = {
    **{
        f"paddle.distributed.fleet.utils.fs.HDFSClient().{name}": _OWN
        for name in ("barrier", "connect", "my_endpoint", "server_endpoint")
    },
}
"""Method or attribute of an object -> why it is not covered."""


def missing(entries: list[dict[str, Any]]) -> dict[str, str]:
    found = {}
    for entry in entries:
        try:
            resolve(entry["name"])
        except Missing as error:
            found[entry["name"]] = str(error)
    return found


def test_there_are_as_many_as_were_counted() -> None:
    assert (len(NAMES), len(METHODS)) == (536, 379)


def test_names_are_covered_or_say_why_not() -> None:
    gone = missing(NAMES)
    assert {*gone} == {*NOT_COVERED}, gone
    assert len(NAMES) - len(gone) >= 480
    assert all(NOT_COVERED.values())


def test_what_ten_files_use_is_covered() -> None:
    often = {entry["name"] for entry in NAMES if entry["files"] >= 10}
    assert not often & {*NOT_COVERED}


def test_names_take_their_keywords() -> None:
    wrong: dict[str, list[str]] = {}
    for entry in NAMES:
        refused = {*NOT_TAKEN.get(entry["name"], {})}
        if lost := {*keywords_lost(entry)} ^ refused:
            wrong[entry["name"]] = sorted(lost)
    assert not wrong


def keywords_lost(entry: dict[str, Any]) -> list[str]:
    found = found_of(entry["name"])
    if found is UNKNOWN or not callable(found):
        return []
    taken = signature(found, method="()" in entry["name"] and inspect.isfunction(found))
    if taken is None:
        return []
    lost = not_taken(taken, entry["keywords"])
    # A call passes what it does not name in order; how many with which keywords is not counted.
    if max(entry["positions"], default=0) > most_positional(taken):
        lost.append(f"{max(entry['positions'])} positions")
    return lost


def found_of(name: str) -> Any:
    try:
        return resolve(name)
    except Missing:
        return UNKNOWN


def test_methods_of_objects_are_covered_or_say_why_not() -> None:
    gone = missing([entry for entry in METHODS if entry["name"].split("()")[0] not in NOT_COVERED])
    assert {*gone} == {*METHODS_NOT_COVERED}, gone


def test_methods_take_their_keywords() -> None:
    wrong = {
        entry["name"]: lost
        for entry in METHODS
        if {*(lost := keywords_lost(entry))} ^ {*NOT_TAKEN.get(entry["name"], {})}
    }
    assert not wrong
