"""The generators that draw dropout masks and augmentations: torch's, numpy's and Python's."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of this process, and of its device where that draws numbers of its own."""
    version, words, gauss = random.getstate()
    drawn: Any = np.random.get_state()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, torch.tensor(words), gauss],
        "numpy": [drawn[0], torch.tensor(drawn[1].astype(np.int64)), *drawn[2:]],
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Take back what ``random_state`` returned."""
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, key, *rest = state["numpy"]
    np.random.set_state((name, key.numpy().astype(np.uint32), *rest))
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"], device)
