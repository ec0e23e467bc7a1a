"""Where a recorded graph computes: fakes are on the CPU, runs are where the job is."""

from typing import Any

import torch
from torch import fx

from fleetx.graph.torch_functions import FACTORIES


def place_on(graph: fx.Graph, device: torch.device) -> None:
    """A device that code read from a variable, or took by default, becomes the real one."""
    if device.type == "cpu":
        return

    def moved(value: Any) -> Any:
        return device if isinstance(value, torch.device) and value.type == "cpu" else value

    for node in graph.nodes:
        node.args = tuple(moved(value) for value in node.args)
        node.kwargs = {key: moved(value) for key, value in node.kwargs.items()}
        if node.op == "call_function" and node.target in FACTORIES:
            node.kwargs = {"device": device, **node.kwargs}
