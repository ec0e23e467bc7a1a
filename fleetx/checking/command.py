"""``fleetx check train.py``: the user's own script with and without each of its flags."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fleetx.launch import devices
from fleetx.script_arguments import add_script

EXAMPLES = """\
examples:
  fleetx check train.py                         two workers, eight batches a run
  fleetx check --workers 4 --batches 20 train.py --lr 0.1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx check``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--workers", type=int, help="processes (default: 2, or one per --gpus)")
    parser.add_argument("--gpus", help="cards, as for fleetrun (default: all there are, else CPU)")
    parser.add_argument(
        "--batches", type=int, default=8, help="batches of each run (default: %(default)s)"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html", help="write the result as a page, too"
    )
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Run the script once as it is and once without each flag; print the report."""
    if reason := _refusal(args) or _choose_workers(args):
        print(f"fleetx check: error: {reason}", file=sys.stderr)
        return 2
    from fleetx.checking.probe import load
    from fleetx.checking.report import judge

    folder = Path(tempfile.mkdtemp(prefix="fleetx-check-"))
    files: dict[str, Path] = {"": folder / "all.pt"}
    if code := _probe(args, "", files[""]):
        return code  # its logs stay, for the user to read
    if not files[""].exists():
        print(
            "fleetx check: error: the script trained no batch of a distributed model; it must "
            "call fleet.distributed_model(), fleet.distributed_optimizer() and minimize().",
            file=sys.stderr,
        )
        return 2
    everything, workers = load(files[""])
    files["again"] = folder / "again.pt"
    if code := _probe(args, "", files["again"], as_it_is="as it is, again"):
        return code
    again, _ = load(files["again"])
    # Runs that differ by themselves tell nothing about a flag.
    alike = judge(everything, {}, workers, again=again).alike
    flags = [*everything.tolerances] if alike else []
    for name in flags:
        files[name] = folder / f"without-{name}.pt"
        if code := _probe(args, name, files[name]):
            return code
    without = {name: load(files[name])[0] for name in flags}
    shutil.rmtree(folder)
    report = judge(everything, without, workers, again=again)
    print(report)
    if args.report is not None:
        args.report.parent.mkdir(parents=True, exist_ok=True)
        args.report.write_text(report.to_html(), encoding="utf-8")
        print(f"fleetx check: wrote {args.report}")
    return 0 if report.ok else 1


def _refusal(args: argparse.Namespace) -> str | None:
    if not Path(args.script).is_file():
        return f"there is no script {args.script!r}"
    if args.batches < 1 or (args.workers is not None and args.workers < 1):
        return "--batches and --workers must be at least 1"
    return None


def _choose_workers(args: argparse.Namespace) -> str | None:
    """Completes the flags for the cards there are; the reason when that cannot be."""
    automatic, none = args.gpus is None, devices.is_none(args.gpus)
    cards = devices.here() if automatic else 0 if none else len(args.gpus.split(","))
    if cards and args.workers is not None and args.workers > cards:
        return (
            f"--workers {args.workers} is more than the {cards} card(s) there are to use, and two "
            "processes do not share one; lower it, or add --gpus none to check on CPU"
        )
    if automatic and cards == 1 and args.workers is None:
        print("fleetx check: one card here, so two workers run on CPU (--workers 1: on the card)")
        args.gpus = "none"
    args.workers = args.workers or (2 if automatic or none else cards)
    return None


def _probe(args: argparse.Namespace, without: str, output: Path, as_it_is: str = "as it is") -> int:
    """One run under fleetrun; its output is shown when it fails."""
    print(f"fleetx check: running {f'without {without}' if without else as_it_is} …", flush=True)
    launcher = [sys.executable, "-m", "fleetx.launch", "--nproc_per_node", str(args.workers)]
    launcher += ["--log_dir", str(output.with_suffix(".log"))]
    launcher += ["--gpus", args.gpus] if args.gpus else []
    probe = ["--output", str(output), "--batches", str(args.batches), "--without", without]
    command = [*launcher, "-m", "fleetx.checking.probe", *probe, args.script, *args.arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        print(f"fleetx check: error: the run ended with code {done.returncode}", file=sys.stderr)
    return done.returncode
