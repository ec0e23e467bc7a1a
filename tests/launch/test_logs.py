"""Where logs go, and that none is lost."""

from pathlib import Path

from fleetx.launch.cluster import Process
from fleetx.launch.logs import WorkerLogs

WORKERS = [
    Process(role="TRAINER", rank=rank, local_rank=rank, endpoint=f"a:{rank}") for rank in (0, 1)
]


def run(folder: Path, name: str, attempts: int, *, first: int = 0) -> None:
    """What the workers of one launcher write."""
    logs = WorkerLogs(folder, folder / "errors")
    for attempt in range(first, first + attempts):
        logs.begin(WORKERS, attempt)
        for worker in WORKERS:
            with logs.log(worker).open("w", encoding="utf-8") as file:  # as torch opens it
                file.write(f"{name} {attempt}")


def found(folder: Path) -> dict[str, str]:
    logs = folder.rglob("workerlog.1*")
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in logs}


def test_no_run_overwrites_another(tmp_path: Path) -> None:
    run(tmp_path, "a", attempts=2)
    run(tmp_path, "b", attempts=1)
    run(tmp_path, "c", attempts=2)
    assert found(tmp_path) == {
        "earlier-1/workerlog.1": "a 1",
        "earlier-1/workerlog.1.attempt0": "a 0",
        "earlier-2/workerlog.1": "b 0",
        "workerlog.1": "c 1",
        "workerlog.1.attempt0": "c 0",
    }


def test_a_machine_that_joins_later_overwrites_nothing(tmp_path: Path) -> None:
    run(tmp_path, "a", attempts=2)
    run(tmp_path, "b", attempts=1, first=1)
    assert sorted(found(tmp_path).values()) == ["a 0", "a 1", "b 1"]
