"""A real job of two workers: do they sum, and do they train?"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from fleetx.doctor.finding import Finding, broken, ok
from fleetx.doctor.trial import PARTS

STUCK, LONGEST = 60, 300
"""Seconds after which a job that stands still is ended, and after which any is."""
LINES = 12
TRIAL = ("-m", "fleetx.doctor.trial")
MACHINES = {"clocks"}
"""Parts that say something about several machines alone."""


def two_workers() -> Iterator[Finding]:
    """On the CPU, and on two cards where there are two."""
    if torch.cuda.is_available() and torch.cuda.device_count() > 1:
        yield from _job(["--nproc_per_node", "2"])
    yield from _job(["--gpus", "none", "--nproc_per_node", "2"])


def _job(flags: Sequence[str]) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory(prefix="fleetx-doctor-") as folder:
        output = Path(folder) / "found.json"
        code, said = _run([*flags, "--log_dir", f"{folder}/log"], output)
        found = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    yield from (ok(topic, text) for topic, text in found.items() if topic not in MACHINES)
    if code:
        failed = next(topic for topic in [*PARTS, "end"] if topic not in found)
        line = " ".join(["fleetrun", *flags, "-m", "fleetx.doctor.trial"])
        yield broken(
            failed, f"two workers failed (exit code {code}):\n{said}", f"try it by hand: {line}"
        )


def _run(flags: Sequence[str], output: Path) -> tuple[int, str]:
    """The exit code of the job, and the end of what it printed."""
    launcher = [sys.executable, "-m", "fleetx.launch", "--stuck_after", str(STUCK), *flags]
    command = [*launcher, *TRIAL, "--output", str(output)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return 124, f"it was not over after {LONGEST} s"
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return done.returncode, "\n".join(f"    {line}" for line in lines[-LINES:])
