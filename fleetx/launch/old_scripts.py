"""What `--paddle` changes: old scripts find `paddle`, and run where their cards are not."""

from collections.abc import Mapping
from dataclasses import replace

from fleetx.launch.addresses import split_list
from fleetx.launch.arguments import Arguments
from fleetx.launch.devices import is_none, visible

HASH_SEED = "PYTHONHASHSEED"
"""Old scripts number features by `hash()`, which must agree between workers."""


def without_cards(
    arguments: Arguments, environ: Mapping[str, str]
) -> tuple[Arguments, tuple[str, ...]]:
    """Let as many processes compute on the CPU as cards were named, where there is none."""
    if arguments.gpus is None or is_none(arguments.gpus) or visible(environ):
        return arguments, ()
    count = arguments.nproc_per_node or len(split_list(arguments.gpus, "--gpus"))
    said = f"--gpus {arguments.gpus}: there is no card here, so {count} processes run on the CPU"
    return replace(arguments, gpus="none", nproc_per_node=count), (said,)
