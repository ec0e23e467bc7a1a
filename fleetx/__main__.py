"""The command ``fleetx``: tools around a training script."""

import argparse
import importlib
import platform
import sys
from collections.abc import Sequence
from importlib import metadata

from fleetx import __version__
from fleetx.near_names import did_you_mean

TOOLS = {
    "chaos": (
        "fleetx.chaos.command",
        "kill, stop and damage parameter servers, and count what is lost",
        "Runs jobs with parameter servers, kills and stops their processes, fills their disks, "
        "damages their files and sends them wrong bytes, and counts every push.",
    ),
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
    "doctor": (
        "fleetx.doctor.command",
        "see whether this machine can run a distributed job",
        "Looks at versions, cards, links, shared memory, ports, clock and limits, and lets two "
        "workers train; each line is ok, or says what to do.",
    ),
    "evaluate": (
        "fleetx.evaluate.evaluate_command",
        "write the vectors of a model's last layer",
        "Runs a model over the inputs of a list and writes one vector for each of them.",
    ),
    "explain": (
        "fleetx.planning.explain_command",
        "say what the strategy of a script does, for any number of workers",
        "Runs your script up to its model and its optimizer, and prints the plan: what runs in "
        "which order, what workers hold and what they send.",
    ),
    "init": (
        "fleetx.planning.init_command",
        "write a strategy file and the line that starts the job",
        "Asks four questions, or takes the answers as flags, and writes a strategy file that "
        "works.",
    ),
    "plan": (
        "fleetx.planning.command",
        "find the best strategy for a script on this or another cluster",
        "Runs your script up to its model and its optimizer, compares all legal plans for them, "
        "and writes the best one as a strategy file, with a table and pictures.",
    ),
    "profile": (
        "fleetx.profiling.command",
        "say where a step of a script goes, and which flag would shorten it",
        "Runs your script for a few steps and divides a step into forward, backward, exchange, "
        "update and waiting, as a table and pictures; then tries each legal flag on copies of its "
        "model.",
    ),
    "ps": (
        "fleetx.ps.observers.command",
        "look at parameter servers, and keep a fresh copy for serving",
        "Reports what the servers of a running job hold and do, and keeps a read-only copy of it "
        "that inference models follow.",
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
    parser.add_argument("--version", action="version", version=_version())
    tools = parser.add_subparsers(dest="tool", required=True, metavar="TOOL")
    for name, (module, help, description) in TOOLS.items():
        command = importlib.import_module(module)
        command.add_arguments(tools.add_parser(name, help=help, description=description))
    given = sys.argv[1:] if argv is None else list(argv)
    if given and not given[0].startswith("-") and given[0] not in TOOLS:
        parser.error(f"there is no tool {given[0]!r}; {did_you_mean(given[0], TOOLS)}")
    args = parser.parse_args(given)
    code: int = importlib.import_module(TOOLS[args.tool][0]).run(args)
    return code


def _version() -> str:
    try:
        torch = metadata.version("torch")  # without its two seconds
    except metadata.PackageNotFoundError:
        torch = "is missing"
    return f"fleetx {__version__} (torch {torch}, Python {platform.python_version()})"


if __name__ == "__main__":
    sys.exit(main())
