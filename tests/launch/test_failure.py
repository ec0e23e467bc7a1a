"""Which failure was the first, and how it is told."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fleetx.launch import failure
from fleetx.launch.cluster import Process
from fleetx.launch.failure import Failure, Watch, first


def workers(number: int) -> tuple[Process, ...]:
    return tuple(
        Process(role="TRAINER", rank=rank, local_rank=rank, endpoint="") for rank in range(number)
    )


def write_error(path: Path, *, at: float, message: str, code: int = 1) -> None:
    extra = {"time": at, "timestamp": str(int(at)), "exit_code": code}
    path.write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


def test_a_killed_process_precedes_the_exception_it_causes(tmp_path: Path) -> None:
    files = [tmp_path / str(rank) for rank in range(3)]
    watch = Watch(workers(3), files)
    assert watch.look({0: None, 1: None, 2: None}) is None
    time.sleep(0.01)
    write_error(files[0], at=time.time(), message="ConnectionError: gone")
    found = watch.look({0: 1, 1: -9, 2: None})
    assert found is not None
    assert found[0].rank == 1
    assert (found[1].exit_code, found[1].message) == (137, "killed by SIGKILL")


def test_the_earliest_exception_wins_even_of_a_process_still_ending(tmp_path: Path) -> None:
    files = [tmp_path / str(rank) for rank in range(2)]
    watch = Watch(workers(2), files)
    now = time.time()
    write_error(files[1], at=now + 0.001, message="ValueError: cause", code=3)
    assert watch.look({0: None, 1: None}) is None, "it may still end by itself"
    write_error(files[0], at=now + 0.002, message="ConnectionError: consequence")
    found = watch.look({0: 1, 1: None})
    assert found is not None
    assert (found[0].rank, found[1].exit_code) == (1, 3)


def test_a_failed_script_may_not_hang(tmp_path: Path) -> None:
    file = tmp_path / "0"
    write_error(file, at=time.time() - 60, message="ValueError: long ago")
    found = Watch(workers(1), [file]).look({0: None})
    assert found is not None
    assert found[1].message == "ValueError: long ago"


def test_good_endings_are_counted(tmp_path: Path) -> None:
    watch = Watch(workers(2), [tmp_path / "0", tmp_path / "1"])
    assert watch.look({0: 0, 1: None}) is None
    assert watch.finished("TRAINER") == 1
    assert watch.look({0: 0, 1: 0}) is None
    assert watch.finished("TRAINER") == 2


def test_a_failure_travels_and_tells_where() -> None:
    late = Failure(title="rank 0", node="a", exit_code=1, time=2.0, message="late")
    early = replace(
        late, title="rank 1", node="b", time=1.0, log="log/x", lines=("end",), others="rank 0 slept"
    )
    assert first([late, early]) == early
    assert Failure.from_json(early.to_json()) == early
    text = early.report("a", several=True)
    assert text.startswith("rank 1 on b failed first (exit code 1) at ")
    assert text.endswith(
        ": late\nmeanwhile rank 0 slept\nlast lines of log/x:\n    end\nthe log is on b"
    )
    assert "on b" not in early.report("b", several=False)


def test_a_process_that_the_system_killed_for_its_memory_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure, "OUT_OF_MEMORY", (tmp_path / "none", tmp_path / "events"))
    events = tmp_path / "events"
    events.write_text("low 0\noom 4\noom_kill 4\n")
    watch = Watch(workers(2), [tmp_path / "0", tmp_path / "1"])
    events.write_text("low 0\noom 5\noom_kill 5\n")
    found = watch.look({0: None, 1: -9})
    assert found is not None
    assert found[1].message == "killed by SIGKILL, by the system: its memory ran out"
