"""fleetx check, as a user types it."""

import subprocess
import sys
from pathlib import Path

SCRIPT = str(Path(__file__).parent / "scripts" / "merged.py")


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fleetx", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_a_script_is_run_with_and_without_each_flag() -> None:
    done = check("--batches", "6", "--gpus", "none", SCRIPT)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if "running" in line] == [
        "fleetx check: running as it is …",
        "fleetx check: running without fp16_allreduce …",
        "fleetx check: running without gradient_merge …",
    ]
    assert "fleetx check: fp16_allreduce, gradient_merge; 6 batches on 2 workers" in lines
    assert any(line.startswith("  fp16_allreduce  within") for line in lines)
    assert any(line.startswith("  gradient_merge  in force") for line in lines)
    assert "  ranks           equal      all 2 workers hold the same weights" in lines
    assert lines[-1] == "Every flag does what it promises here."


def test_a_refused_plan_is_shown_with_its_reason() -> None:
    done = check("--gpus", "none", SCRIPT, "--refused")
    assert done.returncode == 1
    assert "fp16_allreduce needs an exchange of gradients between workers" in done.stderr


def test_bad_arguments_are_answered_in_a_sentence() -> None:
    missing = check("nowhere.py")
    assert missing.returncode == 2
    assert missing.stderr == "fleetx check: error: there is no script 'nowhere.py'\n"
    assert check("--batches", "0", SCRIPT).returncode == 2
    assert "fleetx check --workers 4" in check("--help").stdout
