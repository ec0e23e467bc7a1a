"""``fleetx chaos ps``: kills, stops and damages a job with parameter servers, and counts."""

import argparse
import tempfile
from pathlib import Path

EXAMPLES = """\
examples:
  fleetx chaos ps                              a minute in each of the four modes
  fleetx chaos ps --kills 300 --modes sync     servers killed 300 times in synchronous training
  fleetx chaos ps --stops 5 --stop_seconds 10  servers that are stopped for ten seconds
  fleetx chaos ps --folder /mnt/disk           on the disk that your servers use
  fleetx chaos ps --storage disk               with tables larger than memory

Workers count up in tables, so that each push that is lost or applied twice shows. The exit code is
1 if any was, if a damaged file was loaded, or if a process ended that should have gone on.
"""
_COUNTS = {
    "kills": (25, "servers that are killed with SIGKILL, in each mode"),
    "worker_kills": (5, "workers that are killed, where a job goes on without them"),
    "stops": (3, "servers that are stopped for a while"),
    "full_disks": (3, "times that a server can write nothing"),
    "damages": (50, "bits turned over, and files removed, in the state of a dead server"),
    "frames": (500, "frames with wrong bytes, and strangers"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx chaos``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=["ps"], help="a job with parameter servers")
    for name, (count, text) in _COUNTS.items():
        parser.add_argument(f"--{name}", type=_count, default=count, help=f"{text} ({count})")
    parser.add_argument("--stop_seconds", type=float, default=0.5, help="how long (0.5)")
    modes = "sync,async,half_async,geo"
    parser.add_argument("--modes", default=modes, help=f"ways to exchange ({modes})")
    parser.add_argument("--servers", type=_count, default=2, help="of each job (2)")
    parser.add_argument("--workers", type=_count, default=2, help="of each job (2)")
    parser.add_argument(
        "--storage",
        choices=["memory", "disk"],
        default="memory",
        help="where rows are that are seldom used (memory)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of chance (0)")
    parser.add_argument("--folder", help="where servers keep their state; a temporary one if none")


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no count; pass a whole number from 0")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run a job in each mode and print what became of it; 1 if anything is wrong."""
    from fleetx.chaos.lanes import MODES
    from fleetx.chaos.ps import Faults, run_modes
    from fleetx.chaos.tally import Tally

    modes = args.modes.split(",")
    if strange := [mode for mode in modes if mode not in MODES]:
        print(f"fleetx chaos: --modes {strange[0]} is not known; name some of {', '.join(MODES)}")
        return 2
    if not args.servers or not args.workers:
        print("fleetx chaos: a job needs a server and a worker; pass --servers and --workers")
        return 2
    faults = Faults(
        **{name: getattr(args, name) for name in _COUNTS}, stop_seconds=args.stop_seconds
    )
    total = Tally()
    with tempfile.TemporaryDirectory(prefix="fleetx-chaos-", dir=args.folder) as folder:
        sizes = {"servers": args.servers, "workers": args.workers, "seed": args.seed}
        sizes |= {"storage": args.storage}
        for mode, tally in run_modes(modes, Path(folder), faults, **sizes):
            print(f"{mode}: {tally.line()}", flush=True)
            for failure in tally.failures:
                print(f"  {failure}", flush=True)
            total.add(tally)
    print(f"fleetx chaos: {'nothing was lost' if total.ok else 'BROKEN'} ({total.line()})")
    return 0 if total.ok else 1
