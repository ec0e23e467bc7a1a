"""Who decodes images: the cores of this worker, or its card."""

import logging
from dataclasses import dataclass
from functools import cache

import torch

from fleetx.data.images.card import images_per_second, lacking
from fleetx.data.images.encoded import common_share
from fleetx.data.images.labelled import LabelledFiles
from fleetx.data.team import find_device

logger = logging.getLogger(__name__)

DECODERS = ("auto", "gpu", "cpu")
CORE = 600
"""Photographs of 500 x 375 pixels that one core decodes and cuts in a second."""
READERS = 4
"""Processes that read files as fast as any card decodes them."""
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Decoder:
    """Who decodes."""

    card: torch.device | None
    """None: the processes of the loader."""
    processes: int
    """Of the loader."""


def choose_decoder(decoder: str, files: LabelledFiles, cores: int) -> Decoder:
    """Who decodes these files.

    Args:
        decoder: what was set.
        files: a few of them are looked at.
        cores: of this worker.
    """
    if decoder not in DECODERS:
        raise ValueError(f"decoder={decoder!r} is not known; use 'auto', 'gpu' or 'cpu'.")
    if decoder == "cpu":
        return Decoder(None, cores)
    device = _device(decoder)
    if decoder == "gpu" and (reason := lacking(device)):
        raise ValueError(
            f"decoder='gpu' cannot be in force: {reason}. Set decoder to 'cpu', or to 'auto', "
            "which takes the GPU where it can."
        )
    if decoder == "auto" and (device.type != "cuda" or not _is_worth_it(device, files, cores)):
        return Decoder(None, cores)
    # What the card does not decode is decoded by those who read.
    return Decoder(device, min(READERS, cores) if common_share(files) >= _NEARLY_ALL else cores)


def _device(decoder: str) -> torch.device:
    """Where this worker computes; a script without fleet.init() may still ask for its card."""
    found = find_device()
    if found is None and decoder == "gpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return found or torch.device("cpu")


def _is_worth_it(device: torch.device, files: LabelledFiles, cores: int) -> bool:
    """Whether the cores are slower than the card, and most files are for it."""
    if reason := lacking(device):
        return _told(f"the cores, because {reason}", False)
    if (share := common_share(files)) < 0.5:
        return _told(
            f"the cores, because only {share:.0%} of the files are plain JPEG files, which GPUs "
            "decode",
            False,
        )
    card, host = images_per_second(device), cores * CORE
    speeds = f"about {card:,.0f} images/s, and {cores} core(s) about {host:,}"
    if card > host:
        return _told(f"the GPU, because it decodes {speeds}", True)
    return _told(f"the cores, because the GPU decodes {speeds}", False)


@cache
def _told(what: str, answer: bool) -> bool:
    logger.info("decoder='auto' takes %s", what)
    return answer
