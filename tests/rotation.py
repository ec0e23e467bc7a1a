"""Cases of which each commit's gate runs a share: all of them come round, `make test-all` runs all.

Which share it is depends on the day of the commit, so that a commit has one answer.
"""

import functools
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])


def rotating(cases: Sequence[Any], shares: int, *, rows: bool = False) -> list[Any]:
    """Parameters, of which those that are not this commit's are marked ``rare``.

    With ``rows`` a case is a row of several parameters.
    """
    turn = day_of_commit() % shares
    return [
        case
        if number % shares == turn
        else pytest.param(*(case if rows else [case]), marks=pytest.mark.rare)
        for number, case in enumerate(cases)
    ]


def by_turns(turn: int, *, of: int) -> Callable[[Test], Test]:
    """Marks a dear test that is run at every ``of``-th day of commits, and in ``make test-all``."""
    return (lambda test: test) if day_of_commit() % of == turn else pytest.mark.rare


def long_turn() -> int:
    """Changes so slowly that all cases of `rotating` come round before it does."""
    return day_of_commit() // 12


@functools.cache
def day_of_commit() -> int:
    """Days from 1970 to the commit that is checked out; 0 where there is no history."""
    command = ["git", "log", "-1", "--format=%ct"]
    folder = Path(__file__).parent
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return int(said.stdout) // 86_400 if said.returncode == 0 and said.stdout.strip() else 0
