"""The automatic mixed precision that is on while something is recorded."""

import torch

DEVICES = ("cuda", "cpu")
"""Those whose autocast is recorded."""


def autocast_in_force() -> tuple[str, torch.dtype] | None:
    """Device and format of the autocast that is on now."""
    for device in DEVICES:
        if torch.is_autocast_enabled(device):
            return device, torch.get_autocast_dtype(device)
    return None
