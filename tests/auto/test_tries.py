"""Some plans are tried before one is chosen: which, by what was measured of all of them.

``lattice.json`` has every plan of `benchmarks/lattice.py` for three models on CPU workers: what was
expected, and what an update took.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from fleetx.auto.tries import Candidate, Tries

MEASURED: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "lattice.json").read_text()
)


def candidates(case: str) -> list[Candidate]:
    rows = MEASURED[case]
    return [
        Candidate(frozenset(row["flags"]), frozenset(row["spread"].items()), row["expected"])
        for row in rows
    ]


def after(case: str, number: int) -> Tries:
    tries = Tries(candidates(case))
    for _ in range(number):
        at = tries.next()
        assert at is not None
        tries.took[at] = MEASURED[case][at]["took"]
    return tries


@pytest.mark.parametrize(
    ("case", "limit"), [(case, 1.25 if "8" in case else 1.1) for case in MEASURED]
)
def test_five_tries_find_a_plan_that_is_nearly_the_best(case: str, limit: float) -> None:
    tries = after(case, 5)
    took = [row["took"] for row in MEASURED[case]]
    assert took[tries.best] <= limit * min(took)
    plain = [took[at] for at, one in enumerate(tries.plans) if one.is_plain]
    assert plain
    assert took[tries.best] <= min(plain)


def test_what_is_expected_alone_is_not_enough() -> None:
    """Tensor parallel was expected to take a quarter of what it takes on CPUs."""
    took = [row["took"] for row in MEASURED["mlp on 2"]]
    assert took[Tries(candidates("mlp on 2")).best] > 1.4 * min(took)


def test_all_plans_are_tried_if_one_likes() -> None:
    tries = after("mlp on 2", len(MEASURED["mlp on 2"]))
    assert tries.next() is None
    assert len(tries.took) == len(tries.plans)
