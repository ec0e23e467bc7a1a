"""The command ``fleetx``: tools around a training script."""

import argparse
import importlib
import sys
from collections.abc import Sequence

TOOLS = {
    "check": (
        "fleetx.checking.command",
        "run a script with and without each of its flags and compare",
        "Runs your own script for a few batches with its strategy and without each of its flags, "
        "and says which flags are in force, equal, or wrong.",
    ),
    "cluster": (
        "fleetx.planning.cluster_command",
        "measure what the machines at hand can do",
        "Measures arithmetic, memory and links for `fleetx plan` and strategy.auto, once for each "
        "machine and number of workers.",
    ),
    "compat": (
        "fleetx.compat.command",
        "run, look at and move on old scripts of Paddle Fleet",
        "Old scripts of Paddle Fleet run on PyTorch, unchanged: what they use is listed, run, "
        "and rewritten in native names.",
    ),
    "data": (
        "fleetx.data.making.command",
        "make a small data set",
        "Data sets for the examples.",
    ),
    "evaluate": (
        "fleetx.evaluate.evaluate_command",
        "write the vectors of a model's last layer",
        "Runs a model over the inputs of a list and writes one vector for each of them.",
    ),
    "plan": (
        "fleetx.planning.command",
        "find the best strategy for a script on this or another cluster",
        "Runs your script up to its model and its optimizer, compares all legal plans for them, "
        "and writes the best one as a strategy file, with a table and pictures.",
    ),
    "verify": (
        "fleetx.evaluate.verify_command",
        "compare a running service with such vectors",
        "Sends the same inputs to a service (Open Inference Protocol v2) and compares its answers.",
    ),
    "watch": (
        "fleetx.watch.command",
        "show a job on a page, while it runs and afterwards",
        "Serves one page that shows every rank of a fleetrun job, from the files beside its logs: "
        "steps, losses, memory, exchanges, the plan, servers, and who is slow or stuck.",
    ),
}
"""Name -> the module with its ``add_arguments`` and ``run``, what it does, and in more words."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the tools."""
    parser = argparse.ArgumentParser(prog="fleetx", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True, metavar="TOOL")
    for name, (module, help, description) in TOOLS.items():
        command = importlib.import_module(module)
        command.add_arguments(tools.add_parser(name, help=help, description=description))
    args = parser.parse_args(argv)
    code: int = importlib.import_module(TOOLS[args.tool][0]).run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
