"""``fleetx plan train.py``: the best plans for the model of a script, the best one as a file."""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from fleetx.script_arguments import add_script

if TYPE_CHECKING:
    from fleetx.auto.choose import Plans
    from fleetx.auto.cluster import Cluster
    from fleetx.auto.proposals import Proposal
    from fleetx.planning.script import Captured

EXAMPLES = """\
examples:
  fleetx plan train.py                           for one worker of this machine
  fleetx plan --workers 2 train.py --lr 0.1      for two, measured by `fleetx cluster probe` before
  fleetx plan --cluster h200.yaml --meta train.py      for machines that are not here
  fleetx plan --workers 2 --measure 3 train.py   try the best three, and take the fastest

The script runs until it has called fleet.distributed_model(model, sample=inputs) and
fleet.distributed_optimizer(optimizer); it is not changed, and trains nothing. Load the result with
strategy.load_from_prototxt("plan/strategy.prototxt").
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx plan``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cluster", help="a YAML file that describes the machines")
    parser.add_argument("--workers", type=int, help="of this machine (default: 1)")
    parser.add_argument("--count", type=int, default=10, help="plans (default: %(default)s)")
    parser.add_argument(
        "--meta", action="store_true", help="make the model without numbers, however large it is"
    )
    parser.add_argument(
        "--measure", type=int, default=0, metavar="N", help="run the best N for a few updates"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("plan"), help="a folder (default: %(default)s)"
    )
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, print, write; try the best ones if that was asked for."""
    from fleetx.plan.error import PlanError

    if reason := _refusal(args):
        print(f"fleetx plan: error: {reason}", file=sys.stderr)
        return 2
    try:
        return _plan(args)
    except PlanError as error:
        print(f"fleetx plan: error: {error}", file=sys.stderr)
        return 1


def _refusal(args: argparse.Namespace) -> str | None:
    if not Path(args.script).is_file():
        return f"there is no script {args.script!r}"
    if args.count < 1 or args.measure < 0 or (args.workers is not None and args.workers < 1):
        return "--count and --workers must be at least 1, and --measure at least 0"
    if args.cluster and args.workers is not None:
        return "--cluster says how many workers there are; leave --workers out"
    if args.cluster and args.measure:
        return "--measure runs plans on this machine, and --cluster describes others; leave one out"
    return None


def _plan(args: argparse.Namespace) -> int:
    from fleetx.api.planning import this_machine
    from fleetx.auto.cluster import load
    from fleetx.planning.script import captured

    cluster = load(args.cluster) if args.cluster else this_machine(args.workers or 1)
    print(f"fleetx plan: running {args.script} up to its model and its optimizer …", flush=True)
    found = captured(args.script, args.arguments, meta=args.meta)
    if found.ended:
        print(f"fleetx plan: no optimizer was distributed ({found.ended}); AdamW is assumed")
    print(f"fleetx plan: comparing plans for {cluster.workers} workers …", flush=True)
    plans = _chosen(args, found, cluster)
    print(plans)
    if args.measure:
        plans = _measured(args, plans)
    for file in plans.save(args.output):
        print(f"fleetx plan: wrote {file}")
    return 0 if plans.best.expected.fits else 1


def _chosen(args: argparse.Namespace, found: "Captured", cluster: "Cluster") -> "Plans":
    from fleetx.api.planning import plan

    assert found.given is not None
    given = found.given
    if given.sample is None:
        from fleetx.plan.error import PlanError

        raise PlanError(
            f"{args.script} calls fleet.distributed_model() without sample=, so nothing is known "
            "of a batch, by which plans are compared. Pass the inputs of one worker's batch."
        )
    return plan(
        given.model,
        sample=given.sample,
        optimizer=found.optimizer,
        criterion=given.criterion,
        targets=given.targets,
        strategy=found.strategy,
        cluster=cluster,
        count=args.count,
    )


def _measured(args: argparse.Namespace, plans: "Plans") -> "Plans":
    """The plans with the best ones run, and those in the order of what they took."""
    tried: list[tuple[float, Proposal]] = []
    with tempfile.TemporaryDirectory(prefix="fleetx-plan-") as folder:
        for at, proposal in enumerate(plans[: args.measure], 1):
            print(f"fleetx plan: running plan {at} …", flush=True)
            took = _run_one(args, plans, proposal, Path(folder))
            said = "failed" if took is None else f"took {took * 1e3:.4g} ms"
            expected = proposal.expected.seconds
            print(f"fleetx plan: plan {at} {said}, expected were {expected * 1e3:.4g} ms")
            if took is not None:
                tried.append((took, proposal))
    tried.sort(key=lambda pair: pair[0])
    if not tried:
        return plans
    best = [proposal for _, proposal in tried]
    rest = [one for one in plans if one not in best]
    print(f"fleetx plan: plan {list(plans).index(best[0]) + 1} is the fastest of them")
    return replace(plans, proposals=(*best, *rest))


def _run_one(
    args: argparse.Namespace, plans: "Plans", proposal: "Proposal", folder: Path
) -> float | None:
    """Seconds of an update under fleetrun; None if the run failed, whose output is shown."""
    strategy, chosen, output = (folder / name for name in ("strategy", "plan", "took"))
    output.unlink(missing_ok=True)
    proposal.strategy.save_to_prototxt(strategy)
    portion = Fraction(proposal.batch, plans.subject.samples())
    plan = {"strategy": str(strategy), "portion": str(portion), "merged": proposal.merged}
    chosen.write_text(json.dumps(plan), encoding="utf-8")
    workers = plans.cluster.workers
    launcher = [sys.executable, "-m", "fleetx.launch", "--nproc_per_node", str(workers)]
    launcher += ["--log_dir", str(folder / "log")]
    launcher += ["--gpus", "none"] if plans.cluster.device.kind == "cpu" else []
    measure = ["-m", "fleetx.planning.measure", "--plan", str(chosen), "--output", str(output)]
    command = [*launcher, *measure, args.script, *args.arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not output.exists():
        print(done.stdout[-2000:] + done.stderr[-4000:], file=sys.stderr)
        return None
    seconds: float = json.loads(output.read_text(encoding="utf-8"))["seconds"]
    return seconds
