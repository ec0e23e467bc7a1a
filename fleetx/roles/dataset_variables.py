"""Where old scripts find the data sets that Paddle used to download."""

import os
from collections.abc import Mapping
from pathlib import Path

from fleetx.roles.environment import Environment

MIRROR = "FLEETX_DATASETS"
"""A folder or an address with the files, under the names that Paddle gives them."""


def mirror(environ: Mapping[str, str] | None = None) -> str | None:
    """The mirror that the environment names."""
    return Environment(os.environ if environ is None else environ).text(MIRROR) or None


def home() -> Path:
    """Where Paddle keeps data sets."""
    return Path("~/.cache/paddle/dataset").expanduser()
