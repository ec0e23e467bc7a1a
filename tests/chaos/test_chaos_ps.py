"""A job with parameter servers loses nothing, whatever happens to its processes, disk and wire."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from fleetx.__main__ import main
from fleetx.chaos.lanes import MODES
from fleetx.chaos.ps import Faults, Job, run_modes
from fleetx.chaos.tally import Tally
from fleetx.ps.tables import log_file


def disturbed(folder: Path, faults: Faults, modes: Any = MODES, **options: Any) -> Tally:
    total = Tally()
    for mode, tally in run_modes(modes, folder, faults, **options):
        assert tally.ok, (mode, tally.line(), tally.failures)
        total.add(tally)
    return total


def test_twenty_kills_in_all_modes(tmp_path: Path) -> None:
    faults = Faults(kills=5, worker_kills=1, stops=1, full_disks=1, damages=5, frames=20)
    found = disturbed(tmp_path, faults, dense=False)
    assert found.kills >= 20
    assert (found.worker_kills, found.stops, found.full_disks) == (3, 4, 4)
    assert (found.damages, found.frames) == (20, 80)
    assert found.noticed, "but for files that a dying server was about to remove"
    assert found.refused >= 4
    assert found.pushes > 20


def test_kills_with_a_table_that_is_larger_than_memory(tmp_path: Path) -> None:
    faults = Faults(kills=3, full_disks=1)
    found = disturbed(tmp_path, faults, modes=["half_async"], storage="disk", dense=False)
    assert found.kills >= 3
    assert found.refused


def commanded(*flags: str) -> str:
    """What the command says, in a process of its own, which must succeed."""
    command = [sys.executable, "-m", "fleetx", "chaos", "ps", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.rare
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mode", MODES)
def test_three_hundred_kills(mode: str) -> None:
    told = commanded("--modes", mode, "--kills", "75", "--worker_kills", "10", "--damages", "200")
    assert int(re.findall(r"(\d+) kills", told)[0]) >= 75
    assert int(re.findall(r"(\d+) noticed", told)[0]) > 100
    assert "nothing was lost" in told


@pytest.mark.rare
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mode", MODES)
def test_fifty_kills_with_tables_larger_than_memory(mode: str) -> None:
    told = commanded("--modes", mode, "--kills", "50", "--worker_kills", "5", "--storage", "disk")
    assert int(re.findall(r"(\d+) kills", told)[0]) >= 50
    assert "nothing was lost" in told


@pytest.mark.rare
@pytest.mark.timeout(3000)
def test_synchronous_jobs_outlive_servers_that_are_stopped_for_long() -> None:
    """Longer than a worker may be silent."""
    nothing_else = [f"--{name}=0" for name in ("kills", "full_disks", "damages", "frames")]
    told = commanded("--modes=sync", "--stops=6", "--stop_seconds=10", *nothing_else)
    assert "6 stops" in told


class Forgetful(Job):
    """Its servers lose the records of a log since their last checkpoint when they are killed.

    Of a worker one push may not have been acknowledged, so more than one must be lost.
    """

    @override
    def _end_server(self, number: int) -> None:
        super()._end_server(number)
        log = self.options.folder / f"state-{number}" / "0000" / "log"
        path = max(log.glob("*.log"))
        path.write_bytes(path.read_bytes()[: log_file.FILE_HEAD])


def test_a_push_that_is_lost_is_counted(tmp_path: Path) -> None:
    """The count itself can fail."""
    sizes: dict[str, Any] = {"servers": 1, "workers": 1, "seed": 0, "dense": False}
    tally = Forgetful("async", tmp_path, Faults(kills=6), **sizes).run()
    assert not tally.ok
    assert tally.lost or "checkpoint" in str(tally.failures), tally


def test_the_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "ps", "--modes", "sync,slow"]) == 2
    assert "--modes slow is not known; name some of sync, async" in capsys.readouterr().out
    assert main(["chaos", "ps", "--workers", "0"]) == 2
    with pytest.raises(SystemExit):
        main(["chaos", "ps", "--kills", "-1"])
