"""``fleetx.parse_train_configs()``: the few options that FleetX's scripts shared."""

import argparse
from collections.abc import Sequence

from fleetx.expected import ITERABLE, takes


@takes("fleet.parse_train_configs", argv=ITERABLE.such_as("a list of words") | None)
def parse_train_configs(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line; others are left to the script.

    Args:
        argv: the words to parse; those of the process if None.
    """
    # Without abbreviations: a script's own --beta is none of ours.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, default, text in (
        ("lr", 1e-4, "learning rate"),
        ("momentum", 0.9, "of the Momentum optimizer"),
        ("beta1", 0.9, "of Adam"),
        ("beta2", 0.997, "of Adam"),
        ("epsilon", 1e-9, "of Adam"),
    ):
        parser.add_argument(f"--{name}", type=float, default=default, help=text)
    parser.add_argument("--batch_size", type=int, default=32, help="samples of a worker")
    parser.add_argument("--download_config", help="a YAML file for Downloader")
    return parser.parse_known_args(argv)[0]
