"""Who decodes images: the cores of this worker, its card, or both."""

import logging
from dataclasses import dataclass
from functools import cache

import torch

from fleetx.data.images.card import lacking
from fleetx.data.images.encoded import common_share
from fleetx.data.images.labelled import LabelledFiles
from fleetx.data.team import find_device
from fleetx.roles.card_queues import why_few_queues

logger = logging.getLogger(__name__)

DECODERS = ("auto", "gpu", "cpu")
READERS = 4
"""Processes that read files as fast as any card decodes them."""
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Decoder:
    """Who decodes."""

    processes: int
    """Of the loader."""
    card: torch.device | None = None
    """None: those processes alone."""
    shared: bool = False
    """Whether they decode what they have time for, and the card the rest."""


def choose_decoder(decoder: str, files: LabelledFiles, cores: int) -> Decoder:
    """Who decodes these files.

    Args:
        decoder: what was set.
        files: a few of them are looked at.
        cores: of this worker.
    """
    if decoder not in DECODERS:
        raise ValueError(f"decoder={decoder!r} is not known; use 'auto', 'gpu' or 'cpu'.")
    device = torch.device("cpu") if decoder == "cpu" else _device(decoder)
    if decoder == "gpu":
        if reason := lacking(device):
            raise ValueError(
                f"decoder='gpu' cannot be in force: {reason}. Set decoder to 'cpu', or to 'auto', "
                "which takes the GPU where it can."
            )
        # What the card does not decode is decoded by those who read.
        readers = min(READERS, cores) if common_share(files) >= _NEARLY_ALL else cores
        _tell_of_queues()
        return Decoder(readers, device)
    if device.type == "cuda" and _helps(device):
        return Decoder(cores, device, shared=True)
    return Decoder(cores)


def _device(decoder: str) -> torch.device:
    """Where this worker computes; a script without fleet.init() may still ask for its card."""
    found = find_device()
    if found is None and decoder == "gpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return found or torch.device("cpu")


@cache
def _helps(device: torch.device) -> bool:
    """Whether "auto" lets the card decode, which is told."""
    reason = lacking(device)
    if torch.are_deterministic_algorithms_enabled():
        reason = "which images a GPU would decode depends on who has time, and pixels on that"
    if reason:
        logger.info("decoder='auto' takes the cores alone, because %s", reason)
        return False
    logger.info(
        "decoder='auto' takes both: the cores decode the images that they have time for before "
        "they are needed, and %s the others",
        device,
    )
    _tell_of_queues()
    return True


@cache
def _tell_of_queues() -> None:
    """Say once why training will wait for the images, where it will."""
    if reason := why_few_queues():
        logger.warning(
            "The GPU decodes images and trains one after the other, not at the same time, because "
            "%s.",
            reason,
        )
