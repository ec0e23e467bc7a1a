"""Some plans are tried before one is chosen: which, by what was measured of all of them.

`benchmarks/lattice*.json` have what was expected of plans for three models on CPU workers, and what
an update took: the first with a planner that knew little, the others since then.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lattice import candidate
from fleetx.auto.tries import Tries

FOLDER = Path(__file__).parents[2] / "benchmarks"
LOOPBACK = ["two_workers", "mlp_four_workers", "four_and_eight_workers"]
SLOW_LINK = [
    *("slow_link", "slow_link_four_workers", "slow_link_eight_workers"),
    "slow_link_gpt_eight_workers",
]
Rows = list[dict[str, Any]]


def measured(file: Path) -> dict[str, Rows]:
    """The plans of each model and number of workers that were measured."""
    kept, cases = json.loads(file.read_text()), defaultdict(list)
    for row in kept if isinstance(kept, list) else kept["rows"]:
        if row.get("measured") and None not in row["measured"]:  # a plan that failed then
            cases[f"{row['model']} on {row['workers']}"].append(row)
    return cases


MEASURED = measured(FOLDER / "lattice.json")


def took(case: str) -> list[float]:
    return times(MEASURED[case])


def times(rows: Rows) -> list[float]:
    return [min(row["measured"]) for row in rows]


def after(case: str, number: int) -> Tries:
    return tried(MEASURED[case], number)


def tried(rows: Rows, number: int) -> Tries:
    tries = Tries([candidate(row) for row in rows])
    for _ in range(number):
        at = tries.next()
        assert at is not None
        tries.took[at] = times(rows)[at]
    return tries


@pytest.mark.parametrize("case", MEASURED)
def test_five_tries_find_a_plan_that_is_nearly_the_best(case: str) -> None:
    limit = 1.25 if case == "mlp on 8" else 1.1  # eight workers have many layouts
    tries, all_of_them = after(case, 5), took(case)
    assert all_of_them[tries.best] <= limit * min(all_of_them)
    plain = [all_of_them[at] for at, one in enumerate(tries.plans) if one.is_plain]
    assert plain
    assert all_of_them[tries.best] <= min(plain)


@pytest.mark.parametrize("files", [LOOPBACK, SLOW_LINK], ids=["loopback", "slow link"])
def test_the_choice_is_nearly_the_best(files: list[str]) -> None:
    cases: dict[str, Rows] = {}
    for file in files:
        cases |= measured(FOLDER / f"lattice_{file}.json")
    assert len(cases) == 9
    for case, rows in cases.items():
        tries, all_of_them = tried(rows, 5), times(rows)
        chosen = all_of_them[tries.best]
        assert chosen <= 1.1 * min(all_of_them), case
        plain = [time for time, row in zip(all_of_them, rows, strict=True) if row["plain"]]
        assert chosen <= min(plain), f"{case}: slower than plain data parallel"


def test_what_is_expected_alone_is_not_enough() -> None:
    """Tensor parallel was expected to take a quarter of what it takes on CPUs."""
    case = "mlp on 2"
    expected = min(range(len(took(case))), key=lambda at: MEASURED[case][at]["expected"])
    assert took(case)[expected] > 2 * min(took(case))


def test_all_plans_are_tried_if_one_likes() -> None:
    tries = after("mlp on 2", len(MEASURED["mlp on 2"]))
    assert tries.next() is None
    assert len(tries.took) == len(tries.plans)
