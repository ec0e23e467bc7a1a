"""The benchmark of the planner runs: all plans of a lattice are expected, measured and compared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.rare
def test_a_few_plans_are_measured_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "lattice.json"
    command = [sys.executable, "-m", "benchmarks.lattice", "--models", "resnet", "--most", "4"]
    done = subprocess.run(
        [*command, "--json", str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    assert len(rows) >= 4
    assert sum(row["chosen"] for row in rows) == 1
    assert any(row["plain"] for row in rows)
    assert all(len(row["measured"]) == 2 and None not in row["measured"] for row in rows), rows
    assert done.stdout.splitlines()[-1].startswith("resnet")
