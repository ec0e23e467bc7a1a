"""What a module returns of its own weights outlives them.

In stage 3 the memory of weights is given back as soon as their unit has run. A class token, or a
table of positions, is often returned as a view of its parameter, and who reads it later would read
memory that is somebody else's.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from fleetx.comm.local import local
from fleetx.comm.nested import mapped, tensors
from fleetx.strategies.sharding.units import Unit
from fleetx.torch_internals import fsdp_records, fsdp_whole, is_fsdp


def copy_returned_weights(model: nn.Module, units: Sequence[Unit]) -> None:
    """Let the modules of units, and the model, return copies; before FSDP gives memory back."""
    for module in (*(module for unit in units for module in unit.modules), model):
        module.register_forward_hook(_copied, prepend=True)


def _copied(module: nn.Module, args: Any, outputs: Any) -> Any:
    if not is_fsdp(module):  # a copy of the model has this hook, too, and is plain
        return None
    # Its own unit alone: those inside of it have returned copies already.
    gathered = (fsdp_whole(record) for record in fsdp_records(module))
    weights = {_memory(whole) for whole in gathered if whole is not None} - {0}
    if not any(_memory(tensor) in weights for tensor in tensors(outputs)):
        return None
    return mapped(lambda t: t.clone() if _memory(t) in weights else t, outputs)


def _memory(tensor: Tensor) -> int:
    """Where the memory begins that a tensor looks at."""
    return local(tensor).untyped_storage().data_ptr()
