"""Modes of torch that a region of code may switch, and that no node of a graph holds."""

from collections.abc import Mapping
from typing import Any

import torch

from fleetx.torch_internals import saved_tensor_hooks


def regions() -> dict[str, Any]:
    """The modes by what to say about them."""
    return {
        "the default dtype is switched": torch.get_default_dtype(),
        "the default device is switched": torch.get_default_device(),
        "what backward keeps is switched": saved_tensor_hooks(),
        "inference mode is switched": torch.is_inference_mode_enabled(),
        "the kernels of attention are switched": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
        ),
    }


def switched(before: Mapping[str, Any]) -> str | None:
    """Which mode differs from what it was before, if any."""
    now = regions()
    return next((name for name, state in before.items() if now[name] != state), None)
