"""``fleetx cluster probe``: what the machines at hand can do, measured and kept."""

import argparse
import subprocess
import sys
from pathlib import Path

EXAMPLES = """\
examples:
  fleetx cluster probe                     one worker of this machine
  fleetx cluster probe --workers 4         four workers, and the links between them
  fleetx cluster probe --workers 4 --output cluster.yaml
  fleetrun --nnodes 2 --master 10.0.0.1:6170 -m fleetx.planning.cluster_command
                                           all workers of several machines

What is measured is kept for `fleetx plan` and strategy.auto; a change of the machine or of torch
lets them measure anew.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx cluster``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("action", choices=["probe"], help="what to do")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="write it as YAML, too, for fleetx plan")


def run(args: argparse.Namespace) -> int:
    """Measure under fleetrun, print, and write."""
    if args.workers < 1:
        print("fleetx cluster: error: --workers must be at least 1", file=sys.stderr)
        return 2
    print(f"fleetx cluster: measuring {args.workers} worker(s), less than a minute …", flush=True)
    launcher = [sys.executable, "-m", "fleetx.launch", "--nproc_per_node", str(args.workers)]
    done = subprocess.run(
        [*launcher, "--log_dir", "log", "-m", "fleetx.planning.cluster_command"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout[-2000:] + done.stderr[-4000:], file=sys.stderr)
        return done.returncode
    return _show(args)


def _show(args: argparse.Namespace) -> int:
    from fleetx.api.planning import this_machine
    from fleetx.plan.error import PlanError

    found = this_machine(args.workers)
    device, link = found.device, found.inside
    print(f"{found.name}: {found.workers} worker(s), {device.memory_gigabytes:.3g} GB each")
    for kind, rate in device.teraflops.items():
        print(f"  {kind:<16} {rate:.4g} Tflop/s")
    print(f"  {'memory':<16} {device.memory_gigabytes_per_second:.4g} GB/s")
    print(f"  {'a kernel':<16} {device.microseconds_per_kernel:.3g} us to start")
    if found.workers > 1:
        print(f"  {'link':<16} {link.gigabytes_per_second:.4g} GB/s, {link.microseconds:.3g} us")
    if args.output is not None:
        try:
            found.save(args.output)
        except PlanError as error:
            print(f"fleetx cluster: error: {error}", file=sys.stderr)
            return 1
        print(f"fleetx cluster: wrote {args.output}")
    return 0


def main() -> None:
    """What every worker does: measure, all of them together, whatever was measured before."""
    import fleetx as fleet
    from fleetx import roles
    from fleetx.api.chores import with_chores
    from fleetx.auto.here import remember
    from fleetx.auto.probe import probe

    fleet.init(is_collective=True)
    nodes = roles.node_num()
    bare = probe(roles.device(), workers_here=roles.worker_num() // nodes, nodes=nodes)
    found = with_chores(bare)
    if roles.local_rank() == 0:
        remember(found, roles.device())


if __name__ == "__main__":
    main()
