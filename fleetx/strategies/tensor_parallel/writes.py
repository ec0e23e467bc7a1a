"""Writes to tensors of regions: those that take effect, and those that would be lost."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from fleetx.strategies.tensor_parallel.placing import is_cut, is_spread, placed, whole
from fleetx.torch_internals import part_held, viewed

_COPY = "_fleetx_copy_of_a_part"
_VIEWING = (
    *("__getitem__", "chunk", "diagonal", "expand", "flatten", "movedim", "narrow", "permute"),
    *("reshape", "select", "split", "squeeze", "swapaxes", "t", "tensor_split", "transpose"),
    *("unbind", "unflatten", "unfold", "unsqueeze", "view"),
)
_VIEWS = frozenset(
    getattr(place, name) for place in (torch, Tensor) for name in _VIEWING if hasattr(place, name)
)
"""Functions that show a part of a tensor."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _writes(func: Callable[..., Any]) -> bool:
    """Whether a function changes its first argument; the compiler itself knows no names."""
    name = getattr(func, "__name__", "")
    special = name in {"__setitem__", "__set__"} or name.startswith("__i")
    return special or (name.endswith("_") and not name.endswith("__"))


def written(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What a function changes; None if that is nothing."""
    if (out := kwargs.get("out")) is not None:
        return out
    return args[0] if args and (_writes(func) or kwargs.get("inplace")) else None


def refuse_lost_write(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> None:
    """Stop a write to a view for which ranks exchanged what it shows, so that it is a copy."""
    target = written(func, args, kwargs)
    if is_spread(target) and _is_copy(target):
        name = getattr(func, "__name__", "")
        raise ValueError(
            f"a part of what layers that tensor_parallel cuts return is written to ({name}); ranks "
            "have that part as a copy, so the whole would not change. Assign to the part "
            "(x[:, 0] = x[:, 0] * 2), which ranks exchange, or make a new tensor with torch.cat, "
            "torch.stack or torch.where."
        )


def _is_copy(target: DTensor) -> bool:
    if getattr(target, _COPY, False):
        return True
    # While code is made nobody can look at memory, and a base that is read is a part of the code.
    if torch.compiler.is_compiling() or not is_spread(base := viewed(target)):
        return False
    parts = (part_held(each).untyped_storage() for each in (target, base))
    return len({part.data_ptr() for part in parts}) > 1


def mark_copies(func: Callable[..., Any], args: tuple[Any, ...], found: Any) -> None:
    """Remember, while code is made, which parts ranks exchange: elsewhere their memory tells."""
    if func not in _VIEWS or not is_spread(args[0]):
        return
    was_copy = getattr(args[0], _COPY, False)
    if not was_copy and not is_cut(args[0]):
        return
    for part in found if type(found) in {list, tuple} else (found,):
        if is_spread(part) and (was_copy or not is_cut(part)):
            setattr(part, _COPY, True)


def set_item(mesh: DeviceMesh, target: DTensor, index: Any, values: Any) -> None:
    """Assign to a part of a tensor that is cut: DTensor would assign to a copy of that part."""
    (where,) = target.placements
    target.copy_(placed(whole(mesh, _with_item, target, index, values), mesh, where))


def _with_item(tensor: Tensor, index: Any, values: Any) -> Tensor:
    changed = tensor.clone()
    changed[index] = values
    return changed


def refuse_lost_gradient(
    func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], leaves: list[Tensor]
) -> None:
    """Stop a write of a result of cut layers to a plain tensor, which has no gradient of it."""
    target = written(func, args, kwargs)
    plain = isinstance(target, Tensor) and not is_spread(target)
    if plain and torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves):
        name = getattr(func, "__name__", "")
        raise ValueError(
            f"a plain tensor is written to ({name}) with a result of layers that tensor_parallel "
            "cuts, and the gradient would be lost; make the tensor with x.new_zeros(...) of such a "
            "result x, or put the parts together with torch.cat, torch.stack or torch.where."
        )
