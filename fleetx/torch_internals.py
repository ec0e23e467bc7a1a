"""Every private name of torch that fleetx uses, in one place.

A release of torch may change any of them without notice. All were seen to work in 2.11 and 2.13,
which are the oldest and the newest release that fleetx is tested with; `tests/
test_torch_internals.py` says which one is gone or means something else. Methods that subclasses
override stay where the subclass is: `OVERRIDDEN` lists them.
"""

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, fx, nn
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.amp.autocast_mode import _exit_autocast as exit_autocast
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm as BatchNormBase
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvBase
from torch.nn.modules.dropout import _DropoutNd as DropoutBase
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNormBase
from torch.nn.modules.transformer import _detect_is_causal_mask as detect_is_causal_mask
from torch.nn.modules.transformer import _get_seq_len as get_seq_len
from torch.nn.utils import stateless
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
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
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensor,
        FakeTensorMode,
    )
    from torch.distributed.device_mesh import DeviceMesh
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

__all__ = [
    "SUPPORTED_NODES",
    "BatchNormBase",
    "ConstantSource",
    "ConvBase",
    "DataDependentOutputException",
    "DropoutBase",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "InstanceNormBase",
    "NormBase",
    "PythonReferenceAnalysis",
    "TorchDispatchMode",
    "TreeSpec",
    "detect_is_causal_mask",
    "enable_python_dispatcher",
    "enter_autocast",
    "exit_autocast",
    "get_seq_len",
    "sympy_interp",
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
    "torch.fx.experimental.symbolic_shapes.ShapeEnv._set_replacement": "sees sizes become numbers",
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


def written(operator: Any, arguments: Any) -> Iterator[Tensor]:
    """The tensors among positional arguments to which an operator of torch writes."""
    if operator._schema.is_mutable:
        for declared, value in zip(operator._schema.arguments, arguments, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write:
                several = value if isinstance(value, list | tuple) else (value,)
                yield from (tensor for tensor in several if isinstance(tensor, Tensor))


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether something is called before or after a forward of the module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def before_forward(module: nn.Module) -> list[Any]:
    """What is called before a forward of the module."""
    return list(module._forward_pre_hooks.values())


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


def exchanges_made() -> dict[str, int]:
    """Process groups by their names -> how many exchanges this rank has begun in each."""
    return {str(g.group_name): g._get_sequence_number_for_group() for g in process_groups()}


def group_members() -> dict[str, tuple[str, list[int]]]:
    """Process groups by their names -> what torch calls them, and their ranks."""
    from torch.distributed import get_process_group_ranks

    every = process_groups()
    return {str(g.group_name): (str(g.group_desc), get_process_group_ranks(g)) for g in every}


def last_collectives() -> list[dict[str, Any]]:
    """Torch's flight record: collectives of this rank, the latest last, and if they are over.

    Each has ``process_group`` (name and description), ``collective_seq_id`` (its place in the
    group), ``profiling_name``, ``input_sizes`` and ``retired``. Exchanges of two ranks are not
    among those of gloo. Empty where ``TORCH_FR_BUFFER_SIZE=0`` switches the record off.
    """
    from torch._C import _distributed_c10d as c10d

    dump: Any = vars(c10d)["_dump_fr_trace_json"]
    return list(json.loads(dump(True, False)).get("entries", []))


def forget_sharding_plans() -> None:
    """Empty DTensor's caches of sharding decisions, which hold meshes."""
    from torch.distributed.tensor import _redistribute, debug

    clear: Any = debug._clear_sharding_prop_cache
    clear()
    # Not in every release.
    getattr(_redistribute, "clear_redistribute_planner_cache", lambda: None)()


assert_in_graph: Any = torch._assert
"""An assertion that a recorded graph keeps."""


OpOverload = torch._ops.OpOverload
"""One operator of torch for one kind of arguments, such as ``torch.ops.aten.add.Tensor``."""

set_grad_enabled: Any = torch._C._set_grad_enabled
"""Switches gradients for good; the public one is a context that a graph cannot hold."""

without_torch_function: Any = torch._C.DisableTorchFunction
"""A context in which functions of torch do not ask tensor subclasses; modes still act."""


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


def storage_number(tensor: Tensor) -> int:
    """Identifies the memory of a tensor, one without data too."""
    return int(tensor.untyped_storage()._cdata)


def wrapper_subclass(cls: type[Tensor], size: Any, **options: Any) -> Any:
    """A tensor of a subclass that has a shape and no memory."""
    return torch.Tensor._make_wrapper_subclass(cls, size, **options)


def is_transformed() -> bool:
    """Whether a transformation of torch.func runs."""
    return torch._C._functorch.maybe_current_level() is not None


def graph_root(graph: fx.Graph) -> fx.Node:
    """What stands before the first node of a graph."""
    return graph._root


def is_erased(node: fx.Node) -> bool:
    """Whether a node was taken out of its graph."""
    return node._erased


def symbolic_expression(size: torch.SymInt) -> Any:
    """A free size by the input that it comes from, even if it was found equal to another one."""
    return size.node._expr


functional_call: Any = stateless._functional_call
"""What ``torch.func.functional_call`` comes down to, whatever name a script imported it by."""


def replace_functional_call(function: Any) -> None:
    """Let ``torch.func.functional_call`` come down to something else; process-wide."""
    stateless._functional_call = function


checkpoint_generator: Any = checkpoint._checkpoint_without_reentrant_generator
"""What ``torch.utils.checkpoint.checkpoint(use_reentrant=False)`` comes down to."""


def replace_checkpoint_generator(function: Any) -> None:
    """Let non-reentrant checkpoints come down to something else; process-wide."""
    checkpoint._checkpoint_without_reentrant_generator = function


@contextmanager
def as_if_compiling() -> Iterator[None]:
    """Let ``torch.compiler.is_compiling()`` and ``is_exporting()`` answer yes.

    Flags that torch only reads to answer these two; they are put back in any case.
    """
    flags = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
    torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = flags


@contextmanager
def without_mkldnn() -> Iterator[None]:
    """Leave oneDNN out; torch's public switch for it warns about devices of others."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def decompositions() -> Any:
    """The module with what torch runs for operators that have no kernel for fake tensors."""
    from torch._decomp import decompositions as found

    return found


_HEAVY = {
    "ConstantSource": "torch._dynamo.source",
    "DataDependentOutputException": "torch._subclasses.fake_tensor",
    "DynamicOutputShapeException": "torch._subclasses.fake_tensor",
    "FakeTensor": "torch._subclasses.fake_tensor",
    "FakeTensorMode": "torch._subclasses.fake_tensor",
    "PythonReferenceAnalysis": "torch.utils._sympy.reference",
    "enable_python_dispatcher": "torch._dispatch.python",
    "sympy_interp": "torch.utils._sympy.interp",
}
"""What programs are recorded with: fake tensors and free sizes. They load much else of torch, and
jobs without programs do not pay for it."""


def __getattr__(name: str) -> Any:
    """Load a heavy one when it is first asked for."""
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HEAVY[name]), name)
