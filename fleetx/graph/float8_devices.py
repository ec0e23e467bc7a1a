"""Which devices multiply float8 matrices."""

import torch

HOPPER = (9, 0)
"""The first generation of NVIDIA's GPUs that fleetx multiplies float8 matrices on."""


def without_float8(device: torch.device) -> str:
    """Why a device multiplies no float8 matrices, as the end of a sentence; empty if it does."""
    if device.type != "cuda":
        return f"a {device.type.upper()} has no units for it"
    if torch.version.hip is not None:
        return "AMD's GPUs have other float8 formats, which nobody has tried here"
    found = torch.cuda.get_device_capability(device)
    if found < HOPPER:
        name = torch.cuda.get_device_name(device)
        return f"{name} (compute capability {found[0]}.{found[1]}) is older than Hopper (9.0)"
    return ""
