"""An evaluation before training, under ``torch.inference_mode()``.

FSDP makes the tensors into which it gathers weights in the first forward, and keeps them. Those
that are made in inference mode are of no use to training: so they are made before it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fleetx.strategies.sharding.units import Unit


def gather_first_outside_of_inference(model: nn.Module, units: Sequence[Unit]) -> None:
    """Watch for a first forward in inference mode, of the model or of a unit."""
    entered = [model, *(module for unit in units for module in unit.modules)]
    first: list[Any] = [model, *(unit.modules[0] for unit in units)]

    def before(module: nn.Module, args: Any) -> None:
        is_first = bool(handles)  # a copy of the model has this hook, too
        while handles:
            handles.pop().remove()
        if is_first and torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                for unit in first:
                    unit.unshard()
                    unit.reshard()

    # FSDP's own hooks are there already, and these come before them.
    handles = [module.register_forward_pre_hook(before, prepend=True) for module in entered]
