"""The command ``fleetx``: tools around a training script."""

import argparse
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the tools."""
    from fleetx.checking import command

    parser = argparse.ArgumentParser(prog="fleetx", description=__doc__)
    tools = parser.add_subparsers(dest="tool", required=True, metavar="TOOL")
    check = tools.add_parser(
        "check",
        help="run a script with and without each of its flags and compare",
        description="Runs your own script for a few batches with its strategy and without each "
        "of its flags, and says which flags are in force, equal, or wrong.",
    )
    command.add_arguments(check)
    return command.run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
