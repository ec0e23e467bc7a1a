"""Parameters cut over the ranks of a mesh: DTensors of whole shape, which load whole tensors."""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from fleetx.graph.layer_kinds import Place
from fleetx.torch_internals import buffers_of, parameters_of


def cut_parameter(
    places: Sequence[Place], dim: int | None, mesh: DeviceMesh, device: torch.device
) -> None:
    """Make a parameter one DTensor in all its places, cut along ``dim``; None leaves it whole.

    It gets the first rank's values; the others' are overwritten, so that all start equal.
    """
    parameter = getattr(*places[0])
    placement = Replicate() if dim is None else Shard(dim)
    if parameter.is_meta:  # all ranks will draw the same
        values = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
    else:
        values = distribute_tensor(parameter.detach().to(device), mesh, [placement])
    spread = nn.Parameter(values, requires_grad=parameter.requires_grad)
    for owner, name in places:
        setattr(owner, name, spread)


def accept_whole_tensors(model: nn.Module, owners: Iterable[nn.Module]) -> None:
    """Let ``load_state_dict`` of modules take complete plain tensors: each rank keeps its part."""
    for owner in owners:
        owner.register_load_state_dict_pre_hook(partial(_keep_parts, model))


def _keep_parts(
    model: nn.Module, module: nn.Module, state: dict[str, Any], prefix: str, *args: Any
) -> None:
    for name in parameters_of(module):
        value = state.get(prefix + name)
        if not isinstance(value, Tensor) or isinstance(value, DTensor):
            continue
        parameter = _at_rest(model, module, name)
        if isinstance(parameter, DTensor) and value.shape == parameter.shape:
            state[prefix + name] = distribute_tensor(
                value.to(parameter.device),
                parameter.device_mesh,
                parameter.placements,
                src_data_rank=None,
            )


def _at_rest(model: nn.Module, module: nn.Module, name: str) -> Any:
    """The parameter that will be loaded.

    Where fully_shard cuts it a second time, it may be gathered since the last forward; torch puts
    it back before loading, but only after this has looked.
    """
    # Loaded here: FSDP takes a second that jobs which load nothing do not pay.
    from torch.distributed.fsdp import FSDPModule

    parameter = parameters_of(module)[name]
    gathered = isinstance(parameter, DTensor) and parameter.device_mesh.ndim == 1
    if gathered and isinstance(model, FSDPModule):
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                unit.reshard()
    return parameters_of(module)[name]


def moved_buffers(owners: Collection[nn.Module], device: torch.device) -> list[Tensor]:
    """The buffers of modules, each once, after they have been moved to the device.

    Those on the meta device stay there, and are none of them.
    """
    every: dict[int, Tensor] = {}
    for owner in owners:
        for name, buffer in buffers_of(owner).items():
            if buffer is not None and not buffer.is_meta:
                buffers_of(owner)[name] = moved = buffer.to(device)
                every[id(moved)] = moved
    return list(every.values())
