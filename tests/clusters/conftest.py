"""Real clusters on this machine. They take minutes: `make test-clusters` alone runs them."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "clusters.md").read_text()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only who asks for them gets them."""
    if collection_path.name.startswith("test_") and not config.getoption("--clusters"):
        return True
    return None


def blocks(kind: str, section: str) -> list[str]:
    """The blocks of a section of the page, which are what is tried."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def needs(*programs: str) -> None:
    """Skip where something is not installed, and say what."""
    for program in programs:
        if shutil.which(program, path=environment()["PATH"]) is None:
            pytest.skip(f"{program} is not installed")


def environment(**more: str) -> dict[str, str]:
    """In which `python` and `fleetrun` are those of the tests."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, "CUDA_VISIBLE_DEVICES": "", **more}


def run(command: list[str], folder: Path, environ: Mapping[str, str]) -> str:
    """What a command prints; it must end well."""
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def check(said: str, *, workers: int, nodes: int) -> None:
    """Each worker has said who it is, and all have the same weights."""
    found = re.findall(r"worker (\d+) of (\d+) on (\d+): (-?\d+\.\d+)", said)
    assert sorted(int(rank) for rank, *_ in found) == list(range(workers)), said
    assert {(int(size), int(on)) for _, size, on, _ in found} == {(workers, nodes)}, said
    assert len({total for *_, total in found}) == 1, said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the script of the page."""
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(script)
    return tmp_path
