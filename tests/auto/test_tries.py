"""Some plans are tried before one is chosen: which, by what was measured of all of them.

`benchmarks/lattice.json` has what was expected of plans for three models on CPU workers, and what
an update took.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lattice import candidate
from fleetx.auto.tries import Tries

FILE = Path(__file__).parents[2] / "benchmarks" / "lattice.json"
MEASURED: dict[str, list[dict[str, Any]]] = defaultdict(list)
for _row in json.loads(FILE.read_text()):
    if None not in _row["measured"]:  # a plan that failed then
        MEASURED[f"{_row['model']} on {_row['workers']}"].append(_row)


def took(case: str) -> list[float]:
    return [min(row["measured"]) for row in MEASURED[case]]


def after(case: str, number: int) -> Tries:
    tries = Tries([candidate(row) for row in MEASURED[case]])
    for _ in range(number):
        at = tries.next()
        assert at is not None
        tries.took[at] = took(case)[at]
    return tries


@pytest.mark.parametrize("case", MEASURED)
def test_five_tries_find_a_plan_that_is_nearly_the_best(case: str) -> None:
    limit = 1.25 if case == "mlp on 8" else 1.1  # eight workers have many layouts
    tries, all_of_them = after(case, 5), took(case)
    assert all_of_them[tries.best] <= limit * min(all_of_them)
    plain = [all_of_them[at] for at, one in enumerate(tries.plans) if one.is_plain]
    assert plain
    assert all_of_them[tries.best] <= min(plain)


def test_what_is_expected_alone_is_not_enough() -> None:
    """Tensor parallel was expected to take a quarter of what it takes on CPUs."""
    case = "mlp on 2"
    expected = min(range(len(took(case))), key=lambda at: MEASURED[case][at]["expected"])
    assert took(case)[expected] > 2 * min(took(case))


def test_all_plans_are_tried_if_one_likes() -> None:
    tries = after("mlp on 2", len(MEASURED["mlp on 2"]))
    assert tries.next() is None
    assert len(tries.took) == len(tries.plans)
