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
    kept = json.loads(file.read_text())
    rows = kept["rows"]
    assert kept["machines"].keys() == {"2"}
    assert kept["operators"].keys() == {"resnet 2"}
    assert len(rows) >= 4
    assert sum(row["chosen"] for row in rows) == 1
    assert any(row["plain"] for row in rows)
    assert all(len(row["measured"]) == 2 and None not in row["measured"] for row in rows), rows
    assert done.stdout.splitlines()[-1].startswith("resnet")


def test_plans_that_were_measured_are_reckoned_anew(tmp_path: Path) -> None:
    kept = json.loads((ROOT / "benchmarks/lattice_slow_link.json").read_text())
    kept["rows"] = [row for row in kept["rows"] if row["model"] == "mlp"]
    for row in kept["rows"]:
        row["expected"] *= 100  # which nobody would say today
    file = tmp_path / "some.json"
    file.write_text(json.dumps(kept))
    command = [sys.executable, "-m", "benchmarks.lattice", "--again", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *_, error = done.stdout.splitlines()[-1].split()
    assert float(error.rstrip("%")) < 100, "expected now, by what the machine could do then"
