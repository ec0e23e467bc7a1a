"""``fleetx profile train.py``: where a step of a script goes, and which flag would shorten it."""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetx.script_arguments import add_script

if TYPE_CHECKING:
    from fleetx.profiling.profile import Profile
    from fleetx.profiling.shares import Worker
    from fleetx.profiling.trying import Tries

EXAMPLES = """\
examples:
  fleetx profile train.py                      one worker for each card of this machine, or one CPU
  fleetx profile --workers 2 --gpus none train.py --lr 0.1     two workers on CPU
  fleetx profile --no-try --steps 50 train.py  only measure, for longer
  fleetx profile --try amp,fp16_allreduce train.py             try these flags alone

The script runs as it is for a few steps, and then ends with exit code 0; checkpoints and models
are not written meanwhile. Flags are tried on copies of its model: by default those that leave the
update as it is. Ctrl-C prints what was measured so far.
"""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx profile``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--workers", type=int, help="processes (default: one per card, or one)")
    parser.add_argument("--gpus", help="cards, as for fleetrun (default: all there are, else CPU)")
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default: %(default)s)")
    parser.add_argument(
        "--warmup", type=int, help="steps before them (default: 3, and 14 on a card)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("profile"), help="a folder (default: %(default)s)"
    )
    parser.add_argument("--no-try", action="store_true", help="try no flags, only measure")
    parser.add_argument(
        "--try", dest="named", default="", metavar="FLAGS", help="try these alone: amp,compile"
    )
    parser.add_argument(
        "--try-seconds",
        type=float,
        default=60,
        metavar="S",
        help="begin no other try after that (default: %(default)s)",
    )
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Run the script, print the table, write the files."""
    args.named = [name for name in args.named.split(",") if name]
    if reason := _refusal(args):
        return _error(reason)
    args.out.mkdir(parents=True, exist_ok=True)
    for old in _traces(args):  # of an earlier run, which may have had more workers
        old.unlink()
    folder = Path(tempfile.mkdtemp(prefix="fleetx-profile-"))
    try:
        code, stopped = _run_script(args, folder)
        return _report(args, folder, code, stopped)
    finally:
        shutil.rmtree(folder)


def _error(reason: str, code: int = 2) -> int:
    print(f"fleetx profile: error: {reason}", file=sys.stderr)
    return code


def _refusal(args: argparse.Namespace) -> str | None:
    if not Path(args.script).is_file():
        return f"there is no script {args.script!r}"
    if args.steps < 1 or (args.workers is not None and args.workers < 1):
        return "--steps and --workers must be at least 1"
    if (args.warmup or 0) < 0 or args.try_seconds < 0:
        return "--warmup and --try-seconds must be at least 0"
    if args.no_try and args.named:
        return "--no-try tries nothing, and --try names flags to try; leave one out"
    if args.out.exists() and not args.out.is_dir():
        return f"--out {args.out} is a file; name a folder"
    return _unknown_flag(args.named)


def _unknown_flag(named: list[str]) -> str | None:
    """Before anything runs: whoever misspells a flag shall not wait for the sentence."""
    if not named:
        return None
    import fleetx.strategies  # noqa: F401
    from fleetx.auto.single_changes import refuse_unknown
    from fleetx.plan.error import PlanError

    try:
        refuse_unknown(named)
    except PlanError as error:
        return f"--try {','.join(named)}: {error}"
    return None


def _run_script(args: argparse.Namespace, folder: Path) -> tuple[int, str]:
    """The exit code of the job, and the signal that ended it; its output is shown as it comes."""
    wanted = {
        "steps": args.steps,
        "warmup": args.warmup,
        "tries": not args.no_try,
        "named": args.named,
        "seconds": args.try_seconds,
    }
    launcher = [sys.executable, "-m", "fleetx.launch", "--log_dir", str(args.out / "log")]
    launcher += ["--nproc_per_node", str(args.workers)] if args.workers else []
    launcher += ["--gpus", args.gpus] if args.gpus else []
    probe = ["--folder", str(folder), "--out", str(args.out.resolve())]
    probe += ["--wanted", json.dumps(wanted)]
    command = [*launcher, "-m", "fleetx.profiling.probe", *probe, args.script, *args.arguments]
    print(f"fleetx profile: running {args.script} …", flush=True)
    # In a session of its own: Ctrl-C comes here alone, and is passed on once.
    with (
        _passed_on() as signals,
        subprocess.Popen(command, start_new_session=True) as job,
    ):
        signals.pass_to(job)
        job.wait()
    return job.returncode, signals.seen[0] if signals.seen else ""


class _Signals:
    """Go to the job, which ends in order; those that come before it starts, as soon as it has."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._waiting: list[int] = []
        self._job: subprocess.Popen[Any] | None = None

    def come(self, number: int, frame: object) -> None:
        """A signal came."""
        self.seen.append(signal.Signals(number).name)
        self._waiting.append(number)
        self._send()

    def pass_to(self, job: "subprocess.Popen[Any]") -> None:
        """The job has started."""
        self._job = job
        self._send()

    def _send(self) -> None:
        while self._job is not None and self._waiting:
            self._job.send_signal(self._waiting.pop(0))


@contextmanager
def _passed_on() -> Iterator[_Signals]:
    """Inside, signals end the job and not this process: what was measured is still read."""
    signals = _Signals()
    heeded = [each for each in PASSED_ON if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signals.come) for number in heeded}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(args: argparse.Namespace, folder: Path, code: int, stopped: str) -> int:
    from fleetx.profiling.probe import REFUSED

    if (folder / REFUSED).exists():
        return _error((folder / REFUSED).read_text(encoding="utf-8"))
    profile = _profile(args, folder, code, stopped)
    if profile is None:
        return _error(_nothing(args.script, code, stopped), code or 2)
    print(profile)
    for file in (*profile.save(args.out), *_traces(args)):
        print(f"fleetx profile: wrote {file}")
    return code


def _nothing(script: str, code: int, stopped: str) -> str:
    """Why there is nothing to show."""
    if stopped:
        return f"{stopped} came before a step was timed, so there is nothing to show"
    if code:
        return f"the run ended with code {code} before a step was timed"
    return (
        f"{script} ended before a step was timed. It must call fleet.distributed_model() and "
        "fleet.distributed_optimizer(), and make more updates than --warmup says."
    )


def _profile(args: argparse.Namespace, folder: Path, code: int, stopped: str) -> "Profile | None":
    from fleetx.profiling.profile import Profile

    workers = [*_workers(args, folder)]
    if not workers:
        return None
    cut = ""
    if stopped:
        cut = f"{stopped} ended the run; this is what was measured before."
    elif code:
        cut = f"The run ended with code {code}; this is what was measured before."
    tries = None if args.no_try else _tries(folder)
    return Profile(workers=workers, tries=tries, cut_short=cut)


def _workers(args: argparse.Namespace, folder: Path) -> "Iterator[Worker]":
    from fleetx.profiling.measuring import TRACE
    from fleetx.profiling.shares import Worker
    from fleetx.profiling.tracing import read

    def rank_of(file: Path) -> int:
        return int(file.stem.rpartition("-")[2])

    for file in sorted(folder.glob("steps-*.jsonl"), key=rank_of):
        told = [json.loads(line) for line in _whole_lines(file)]
        trace = args.out / TRACE.format(rank_of(file))
        if told:
            yield Worker(
                rank=rank_of(file),
                laps=[one["lap"] for one in told],
                loads=any(one["loads"] for one in told),
                traced=read(trace) if trace.exists() else None,
                on_card=told[-1]["card"],
            )


def _traces(args: argparse.Namespace) -> list[Path]:
    return sorted(args.out.glob("trace-rank*.json.gz"))


def _whole_lines(file: Path) -> list[str]:
    """A worker that was killed may have left half a line."""
    return [line for line in file.read_text(encoding="utf-8").split("\n")[:-1] if line]


def _tries(folder: Path) -> "Tries | None":
    from fleetx.profiling.probe import TRIES
    from fleetx.profiling.trying import Tries

    file = folder / TRIES
    return Tries.of_json(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None
