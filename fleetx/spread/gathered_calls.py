"""Calls of what torch cannot compute from parts of tensors, with whole ones in their place."""

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from fleetx.spread.from_parts import has_no_rule
from fleetx.torch_internals import spread_where_it_lies, tree_iter, tree_map_only

Function = Callable[..., Any]

_CANNOT = (
    "mixed torch.Tensor and DTensor",
    "in-place operations that require placement changes",
    "Attempted to unbind along the sharded dimension",
    "Sharding propagation failed",
    "as_strided not supported with DTensor",
)
"""What torch says of operators for which it would have to gather something."""
_ASSIGNS = frozenset(
    f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "and", "or")
)


def is_spread(value: Any) -> TypeGuard[DTensor]:
    """Whether it is a tensor that is spread over workers."""
    return isinstance(value, DTensor)


def is_unknown(error: Exception) -> bool:
    """Whether torch knows no way to compute it from parts; it says so before it writes anything."""
    said = str(error)
    if has_no_rule(error) or said.startswith("Cannot find device mesh"):
        return True
    return any(reason in said for reason in _CANNOT)


def gathered(
    mesh: DeviceMesh, func: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Every worker with whole tensors; of what was written each keeps its part."""
    written = writes_to(func, args, kwargs)
    copies = {id(one): one.full_tensor().clone() for one in written if is_spread(one)}

    def complete(tensor: DTensor) -> Tensor:
        return copies[id(tensor)] if id(tensor) in copies else tensor.full_tensor()

    plain_args, plain_kwargs = tree_map_only(DTensor, complete, (args, kwargs))
    found = func(*plain_args, **plain_kwargs)
    for one in filter(is_spread, written):
        whole = everywhere(copies[id(one)], one.device_mesh)
        one.copy_(whole.redistribute(placements=one.placements))
    if written:
        return args[0] if kwargs.get("out") is None else kwargs["out"]
    return tree_map_only(Tensor, lambda tensor: everywhere(tensor, mesh), found)


def writes_to(func: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that it changes."""
    name = func.__name__
    if kwargs.get("out") is not None:
        target = kwargs["out"]
    elif name in _ASSIGNS or (name.endswith("_") and not name.endswith("__")):
        target = args[0]
    else:
        return []
    return [one for one in tree_iter(target) if isinstance(one, Tensor)]


def summed(found: DTensor) -> DTensor:
    """Sums of parts, added up at once: torch refuses to change waiting ones in place."""
    if not any(where.is_partial() for where in found.placements):
        return found
    places = [Replicate() if where.is_partial() else where for where in found.placements]
    return found.redistribute(placements=places)


def everywhere(tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    """A tensor that is equal on all workers, as one of those that are spread, where it lies."""
    places = [Replicate()] * mesh.ndim
    if tensor.device.type == mesh.device_type or tensor.is_meta:
        return DTensor.from_local(tensor, mesh, places, run_check=False)
    # What a script has brought to the host stays there.
    return spread_where_it_lies(tensor.detach().contiguous(), mesh, places, tensor.shape)
