"""``fleetx explain train.py``: the plan of a script in words, before anything of it is trained."""

import argparse
import sys
from pathlib import Path

from fleetx.script_arguments import add_script

EXAMPLES = """\
examples:
  fleetx explain train.py                        for the workers that fleetrun would start here
  fleetx explain --workers 8 train.py --lr 0.1   for eight; they need not exist
  fleetx explain --workers 64 --meta train.py    for a model that is larger than this machine

The script runs until it has called fleet.distributed_model(model) and
fleet.distributed_optimizer(optimizer); it is not changed, and trains nothing. With sample=inputs in
distributed_model() activations are told, too.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx explain``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--workers", type=int, help="of the job (default: one for each card here)")
    parser.add_argument(
        "--meta", action="store_true", help="make the model without numbers, however large it is"
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], help="where workers compute (default: as here)"
    )
    add_script(parser)


def run(args: argparse.Namespace) -> int:
    """Follow the script, and print what its strategy does."""
    from fleetx.plan.error import PlanError

    if reason := _refusal(args):
        print(f"fleetx explain: error: {reason}", file=sys.stderr)
        return 2
    try:
        print(_explained(args))
    except PlanError as error:
        print(f"fleetx explain: error: {error}", file=sys.stderr)
        return 1
    return 0


def _refusal(args: argparse.Namespace) -> str | None:
    if not Path(args.script).is_file():
        return f"there is no script {args.script!r}"
    if args.workers is not None and args.workers < 1:
        return f"--workers must be at least 1, not {args.workers}"
    return None


def _explained(args: argparse.Namespace) -> str:
    from fleetx.launch.devices import here
    from fleetx.planning.script import captured

    found = captured(args.script, args.arguments, meta=args.meta)
    assert found.given is not None
    given = found.given
    if found.ended:
        print(f"fleetx explain: no optimizer was distributed ({found.ended})", file=sys.stderr)
    return found.strategy.explain(
        given.model,
        workers=args.workers or max(1, here()),
        optimizer=found.optimizer,
        sample=given.sample,
        # A loss of nothing cannot be followed, and says less than that it is missing.
        criterion=None if given.targets is None else given.criterion,
        targets=given.targets,
        device=args.device,
    )
