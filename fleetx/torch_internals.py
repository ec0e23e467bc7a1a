"""Every private name of torch that fleetx uses, in one place.

A release of torch may change any of them without notice. All were seen to work in 2.11 and 2.13,
which are the oldest and the newest release that fleetx is tested with; `tests/
test_torch_internals.py` says which one is gone or means something else. Methods that subclasses
override stay where the subclass is: `OVERRIDDEN` lists them.
"""

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm as BatchNormBase
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvBase
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNormBase
from torch.nn.modules.transformer import _detect_is_causal_mask as detect_is_causal_mask
from torch.nn.modules.transformer import _get_seq_len as get_seq_len
from torch.utils._pytree import (
    SUPPORTED_NODES,
    TreeSpec,
    tree_any,
    tree_flatten,
    tree_iter,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "SUPPORTED_NODES",
    "BatchNormBase",
    "ConvBase",
    "InstanceNormBase",
    "NormBase",
    "TreeSpec",
    "detect_is_causal_mask",
    "get_seq_len",
    "tree_any",
    "tree_flatten",
    "tree_iter",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
    "treespec_dumps",
    "treespec_loads",
]

OVERRIDDEN = {
    "torch.nn.Module._apply": "moves what a module keeps beside parameters and buffers",
    "torch.distributed.pipelining.PipelineStage._prepare_forward_infra": "asks for fewer gradients",
}
"""Methods that subclasses of fleetx override or call through super() -> why."""

canonical_mask: Any = F._canonical_mask
"""A mask of numbers out of one of yes and no, as torch's own layers make it."""

# Operators on lists of tensors, which torch.optim itself is written with.
foreach_add: Any = torch._foreach_add
foreach_add_: Any = torch._foreach_add_
foreach_addcmul_: Any = torch._foreach_addcmul_
foreach_clamp_max_: Any = torch._foreach_clamp_max_
foreach_clamp_min_: Any = torch._foreach_clamp_min_
foreach_div: Any = torch._foreach_div
foreach_div_: Any = torch._foreach_div_
foreach_lerp_: Any = torch._foreach_lerp_
foreach_mul: Any = torch._foreach_mul
foreach_mul_: Any = torch._foreach_mul_
foreach_neg: Any = torch._foreach_neg
foreach_norm: Any = torch._foreach_norm
foreach_sqrt: Any = torch._foreach_sqrt
foreach_sub_: Any = torch._foreach_sub_

fused_adam_: Any = torch._fused_adam_
fused_sgd_: Any = torch._fused_sgd_
"""The kernels behind ``torch.optim.Adam(fused=True)`` and ``SGD(fused=True)``."""

unscale_and_find_inf_: Any = torch._amp_foreach_non_finite_check_and_unscale_
"""The kernel behind ``torch.amp.GradScaler.unscale_``."""


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """A module's own parameters by their names, to be read and written."""
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """A module's own buffers by their names, to be read and written."""
    return module._buffers


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """A module's own submodules by their names, to be read and written."""
    return module._modules


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether something is called before or after a forward of the module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether something is called with the gradients of the module."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether something is called with the gradient of a leaf."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written in place; autograd itself compares it."""
    return tensor._version


def is_view(tensor: Tensor) -> bool:
    """Whether a tensor shares the memory of another one."""
    return tensor._is_view()


def values_of(sparse: Tensor) -> Tensor:
    """The values of a sparse tensor, those of equal indices not added up."""
    return sparse._values()


def unsafe_view(tensor: Tensor, shape: Any) -> Tensor:
    """Another shape of a tensor that autograd does not take for a view of it."""
    return cast(Tensor, torch.ops.aten._unsafe_view.default(tensor, shape))


def shared_storage(size: int) -> torch.UntypedStorage:
    """Bytes in shared memory, as the workers of a ``DataLoader`` use them."""
    return cast(torch.UntypedStorage, torch.UntypedStorage._new_shared(size))


def flattened(mesh: "DeviceMesh", name: str) -> "DeviceMesh":
    """All axes of a mesh as one; torch keeps it under its name, so all callers share its group."""
    return mesh._flatten(name)


def seed_spread_tensors(seed: int, mesh: "DeviceMesh") -> None:
    """Seed the numbers that DTensors draw."""
    from torch.distributed.tensor._random import manual_seed  # heavy, and rarely needed

    manual_seed(seed, mesh)


def check_reduced(replica: nn.parallel.DistributedDataParallel) -> None:
    """Raise if DDP still waits for gradients of the last backward."""
    replica._check_reducer_finalized()


FsdpRecord: TypeAlias = Any
"""What FSDP2 knows of one parameter: ``sharded_param``, ``unsharded_accumulated_grad``, …"""


def is_fsdp(module: nn.Module) -> bool:
    """Whether FSDP2 has spread the module; asks without loading FSDP."""
    return hasattr(module, "_get_fsdp_state")


def fsdp_records(module: Any) -> list[FsdpRecord]:
    """The records of the parameters that an FSDP module spreads as one unit."""
    group = module._get_fsdp_state()._fsdp_param_group
    return [] if group is None else list(group.fsdp_params)


def fsdp_owner(record: FsdpRecord) -> tuple[nn.Module, str]:
    """The module that has the parameter of a record, and the name there."""
    return record._module_info.module, record._module_info.param_name


def fsdp_whole(record: FsdpRecord) -> Tensor | None:
    """The whole parameter of a record; None before it was gathered for the first time."""
    return getattr(record, "_unsharded_param", None)


def mark_parameter(tensor: Tensor) -> None:
    """Let ``isinstance(tensor, nn.Parameter)`` be true, which mixed precision asks."""
    tensor._is_param = True


def put_flat_weight(layer: nn.RNNBase, name: str, parameter: Any) -> None:
    """Exchange a weight in the list that recurrent layers keep beside their parameters."""
    layer._flat_weights[layer._flat_weights_names.index(name)] = parameter


def check_input_dim(layer: BatchNormBase, inputs: Tensor) -> None:
    """Raise as the layer itself does if it was not made for inputs of that many dimensions."""
    layer._check_input_dim(inputs)


def saved_tensor_hooks() -> Any:
    """The hooks of ``torch.autograd.graph.saved_tensors_hooks`` that are in force."""
    from torch._C._autograd import _top_saved_tensors_default_hooks

    return _top_saved_tensors_default_hooks(False)


def process_groups() -> list[Any]:
    """All process groups that exist, the default one included."""
    from torch.distributed import distributed_c10d

    return list(distributed_c10d._world.pg_map)


def groups_made() -> int:
    """How many process groups this process has made; names of new ones are counted by it."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._world.group_count


def forget_sharding_plans() -> None:
    """Empty DTensor's caches of sharding decisions, which hold meshes."""
    from torch.distributed.tensor import _redistribute, debug

    clear: Any = debug._clear_sharding_prop_cache
    clear()
    # Not in every release.
    getattr(_redistribute, "clear_redistribute_planner_cache", lambda: None)()


assert_in_graph: Any = torch._assert
"""An assertion that a recorded graph keeps."""
