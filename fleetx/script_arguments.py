"""What each command that runs a script takes at its end: the script, and what is passed on."""

import argparse


def add_script(parser: argparse.ArgumentParser) -> None:
    """Take them as ``script`` and ``arguments``."""
    parser.add_argument("script", help="a training script that uses fleetx; it is not changed")
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="passed on to the script"
    )
    rest.required = False  # which Python 3.11 would else name beside a missing script
