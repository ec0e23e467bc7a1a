"""Two jobs that save into one folder at one moment: one of them is told so."""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.api.table_saves import save
from fleetx.ps.tables import save_lock
from fleetx.ps.tables.save_lock import SaveInUseError
from fleetx.testing.limits import stretched
from tests.launch.conftest import heed_signals
from tests.programs import python
from tests.ps.team import push, rows, table, team
from tests.ps.test_interrupted_saves import SPEC

HOLDS = """
import os, sys
from pathlib import Path
from fleetx.ps.tables import save_lock
with save_lock.held(Path(sys.argv[1]), sys.argv[2]):
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""


@contextmanager
def other(folder: Path, who: str) -> Iterator[int]:
    """The process of a job that saves into a folder until it is told to end."""
    process = subprocess.Popen(
        [python(), "-c", HOLDS, str(folder), who],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock that a thread could hold
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())  # which need not be the one that was started
    finally:
        process.communicate()


def lost(folder: Path, who: str) -> None:
    """Wait until the kernel has ended all threads of a process that was killed."""
    deadline = time.monotonic() + stretched(60)
    with (folder / f".saving-{who}").open("a") as file:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError, PermissionError):
                return fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(0.01)
    raise AssertionError("it is held by nobody who lives, and still is")


@pytest.mark.parametrize("who", [save_lock.WORKER, save_lock.server(1)])
def test_who_saves_where_another_job_saves_is_told(tmp_path: Path, who: str) -> None:
    """A job whose worker is dead may have servers that write still."""
    folder = tmp_path / "model"
    with team(2) as here:
        worker = here.worker()
        handle = table(worker.client, SPEC)
        push(worker.client, handle, range(40), np.full((40, 2), -1.0))
        with other(folder, who) as pid:
            with pytest.raises(ValueError, match=f"process {pid} on .*a folder of its own"):
                save(worker, folder, delta=False)
            assert not (folder / "manifest.json").exists()
            os.kill(pid, signal.SIGKILL)
            lost(folder, who)
            save(worker, folder, delta=False)
        worker.stop()
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "t"]
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        client.call({"method": "load", "folder": str(folder), "tables": None})
        assert rows(client, handle, range(40))[:, 0].tolist() == [1.0] * 40


def test_a_folder_is_let_go_when_a_save_is_done_or_fails(tmp_path: Path) -> None:
    with (
        save_lock.held(tmp_path, "worker"),
        pytest.raises(SaveInUseError, match=f"process {os.getpid()} on"),
        save_lock.held(tmp_path, "worker"),
    ):
        pass
    with pytest.raises(OSError, match="full"), save_lock.held(tmp_path, "worker"):
        raise OSError("full")
    with save_lock.held(tmp_path, "worker"), save_lock.held(tmp_path, "server-0"):
        assert len([*tmp_path.iterdir()]) == 2
    assert not [*tmp_path.iterdir()]


def test_a_lock_whose_name_was_removed_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had it was done between our opening of the file and our lock: it is made anew."""
    seen: list[object] = []
    real = fcntl.lockf

    def lockf(file: Any, flags: int) -> None:
        if not seen:
            (tmp_path / ".saving-worker").unlink()
        seen.append(file)
        real(file, flags)

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with save_lock.held(tmp_path, "worker"):
        assert len(seen) == 2
        assert (tmp_path / ".saving-worker").exists()
