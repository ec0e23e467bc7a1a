"""Modules: what lies in them, their hooks, and the classes behind layers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNormBase
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvBase
from torch.nn.modules.dropout import _DropoutNd as DropoutBase
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNormBase

__all__ = [
    "BatchNormBase",
    "ConvBase",
    "DropoutBase",
    "InstanceNormBase",
    "NormBase",
    "before_forward",
    "buffers_of",
    "check_input_dim",
    "children_of",
    "has_backward_hooks",
    "has_forward_hooks",
    "infer_parameters",
    "moved_or_empty",
    "parameters_of",
    "put_flat_weight",
    "share_persistence",
    "use_children",
    "use_tensors",
]


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """A module's own parameters by their names, to be read and written."""
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """A module's own buffers by their names, to be read and written."""
    return module._buffers


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """A module's own submodules by their names, to be read and written."""
    return module._modules


def moved_or_empty(module: nn.Module, device: torch.device) -> None:
    """Move a module; what is on the meta device gets memory, and its parameters stay the same."""
    made: dict[int, tuple[Tensor, Tensor]] = {}

    def move(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor.to(device)
        if id(tensor) not in made:  # what has several names; kept, so that its number is not reused
            made[id(tensor)] = tensor, torch.empty_like(tensor, device=device)
        return made[id(tensor)][1]

    swaps = torch.__future__.get_swap_module_params_on_conversion()
    # Else torch would make a parameter of its own at each place of one that is tied.
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module._apply(move)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether something is called before or after a forward of the module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def before_forward(module: nn.Module) -> list[Any]:
    """What is called before a forward of the module."""
    return list(module._forward_pre_hooks.values())


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether something is called with the gradients of the module."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def put_flat_weight(layer: nn.RNNBase, name: str, parameter: Any) -> None:
    """Exchange a weight in the list that recurrent layers keep beside their parameters."""
    layer._flat_weights[layer._flat_weights_names.index(name)] = parameter


def check_input_dim(layer: BatchNormBase, inputs: Tensor) -> None:
    """Raise as the layer itself does if it was not made for inputs of that many dimensions."""
    layer._check_input_dim(inputs)


def use_tensors(module: nn.Module, owner: nn.Module) -> None:
    """Let a module share the parameters and buffers that lie directly in another one."""
    module._parameters, module._buffers = owner._parameters, owner._buffers


def use_children(module: nn.Module, children: dict[str, nn.Module | None]) -> None:
    """Give a module other submodules, without what ``setattr`` does."""
    module._modules = children


def share_persistence(module: nn.Module, owner: nn.Module) -> None:
    """Let the buffers of a module be saved if those of another one are."""
    module._non_persistent_buffers_set = owner._non_persistent_buffers_set


def infer_parameters(module: Any, args: Any, kwargs: Any) -> None:
    """Let a lazy module learn its sizes from arguments."""
    module._infer_parameters(module, args, kwargs)
