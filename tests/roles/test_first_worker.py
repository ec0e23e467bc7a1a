"""``fleet.first_worker_first``: worker 0 before all others, and nobody waits for ever."""

from pathlib import Path

import pytest

import fleetx as fleet
from fleetx.testing import world


def load(folder: str, **options: bool) -> list[str]:
    """Like a download: whoever comes first makes the file, the others find it."""
    fleet.init(is_collective=True)
    seen = []
    for name in ("a", "b"):
        file = Path(folder) / name
        with fleet.first_worker_first(**options):
            if not file.exists():
                file.write_text(f"made by {fleet.worker_index()}")
            seen.append(file.read_text())
    return seen


@pytest.mark.parametrize("options", [{}, {"per_machine": True}])
def test_worker_0_makes_what_the_others_find(options: dict[str, bool], tmp_path: Path) -> None:
    for seen in world(3).run(load, str(tmp_path), **options):
        assert seen == ["made by 0", "made by 0"]


def test_a_worker_alone_just_runs_the_block(tmp_path: Path) -> None:
    assert world(1).run(load, str(tmp_path)) == [["made by 0", "made by 0"]]


def fail(worker: int) -> tuple[str, bool]:
    fleet.init(is_collective=True)
    entered = False
    try:
        with fleet.first_worker_first():
            entered = True
            if fleet.worker_index() == worker:
                raise OSError("the disk is full")
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}", entered
    return "", entered


def test_a_failure_of_worker_0_reaches_all() -> None:
    (first, _), *others = world(3).run(fail, 0)
    assert first == "OSError: the disk is full"
    for said, entered in others:
        assert not entered
        assert "all stop. worker 0: OSError: the disk is full" in said


def test_a_failure_of_another_is_its_own() -> None:
    said = [text for text, _ in world(3).run(fail, 1)]
    assert said == ["", "OSError: the disk is full", ""]
