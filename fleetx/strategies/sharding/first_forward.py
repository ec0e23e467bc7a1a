"""The first forward of a spread model, which may be an evaluation, or that of a part.

FSDP takes whatever runs first for the whole model, and keeps the tensors into which it gathers
weights then. Those that are made in inference mode are of no use to training.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fleetx.strategies.sharding.units import Unit
from fleetx.torch_internals import begin_fsdp


def begin_as_whole(model: nn.Module, units: Sequence[Unit]) -> None:
    """Before the first forward of the model or of a unit, make what training needs."""
    entered = [model, *(module for unit in units for module in unit.modules)]
    gathered: list[Any] = [model, *(unit.modules[0] for unit in units)]

    def before(module: nn.Module, args: Any) -> None:
        if not handles:  # a copy of a part has this hook, too
            return
        while handles:
            handles.pop().remove()
        begin_fsdp(model)
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                for unit in gathered:
                    unit.unshard()
                    unit.reshard()

    # FSDP's own hooks are there already, and these come before them.
    handles = [module.register_forward_pre_hook(before, prepend=True) for module in entered]
