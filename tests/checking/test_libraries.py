"""fleetx check on training loops of timm and transformers, as a user types it."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.programs import python
from tests.rotation import rotating

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = ["classifier", "causal_lm"]


def check(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Of a script that imports our list of libraries, from the root of the repository."""
    root = Path(__file__).parents[2]
    own = str(SCRIPTS / f"{script}.py")
    line = [python(), "-m", "fleetx", "check", "--gpus", "none", "--batches", "4"]
    return subprocess.run(
        [*line, *arguments[:2], own, *arguments[2:]],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", rotating(NAMES, 2))
def test_a_loop_of_a_library_passes(script: str) -> None:
    done = check(script, "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fleetx check: gradient_merge; 4 batches on 2 workers" in done.stdout
    for found in (
        "  gradient_merge  in force   changes the update by design",
        "  repeat          equal      a second run ends with the same weights (0.0e+00)",
        "  ranks           equal      all 2 workers hold the same weights",
        "  loss            finite",
    ):
        assert found in done.stdout
    assert done.stdout.splitlines()[-1] == "Every flag does what it promises here."


@pytest.mark.parametrize("script", rotating(NAMES, 2))
def test_an_optimizer_that_fleet_never_got_stops_it(script: str) -> None:
    done = check(script, "--workers", "1", "--lost")
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "AdamW.step() moves parameters of a distributed model past the plan, which would lose what "
        "it does or checks at an update: strategy.gradient_merge. Call optimizer = "
        "fleet.distributed_optimizer(optimizer) and step what it returns."
    ) in done.stderr
