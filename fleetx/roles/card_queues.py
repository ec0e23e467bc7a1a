"""Streams of a card that run beside each other, instead of one after the other in one queue.

The driver deals a process's streams out to eight queues unless it is told otherwise before the
process first uses a card, and streams that share one wait for each other: those of NCCL, of copies
and of decoding for the step that trains. Measured with images that the card decodes: a third of
the speed.
"""

import os
from collections.abc import Mapping, MutableMapping

import torch

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
MOST, USUAL = 32, 8
"""As many as the driver has, and what it takes without the variable."""


def use_all_queues(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let the driver take all of them, unless the user has chosen, or a card is in use already."""
    if not torch.cuda.is_initialized():
        environ.setdefault(VARIABLE, str(MOST))


def why_few_queues(environ: Mapping[str, str] = os.environ) -> str:
    """Why streams may wait for each other, and what to do; empty where they need not."""
    given = environ.get(VARIABLE, "")
    if given.isdecimal() and int(given) >= MOST:
        return ""
    if given:
        return f"{VARIABLE}={given} is set; leave it unset, or set it to {MOST}"
    return (
        f"this process used the GPU before fleet.init(), with {USUAL} queues; call fleet.init() "
        f"first, or set {VARIABLE}={MOST} before the process starts"
    )
