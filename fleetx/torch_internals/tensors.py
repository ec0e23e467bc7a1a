"""Tensors: their memory, their versions, what autograd knows of them."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

__all__ = [
    "after_backward",
    "current_backward",
    "has_gradient_hooks",
    "has_tensor_hooks",
    "hooks_of",
    "is_view",
    "mark_parameter",
    "saved_tensor_hooks",
    "shared_storage",
    "storage_number",
    "unsafe_view",
    "values_of",
    "version_of",
    "viewed",
    "wrapper_subclass",
]


def current_backward() -> int:
    """The number of the backward that calls a hook; one inside of another has its own."""
    return torch._C._current_graph_task_id()


def after_backward(call: Callable[[], None]) -> None:
    """Have something called when the backward that calls a hook is through, unless it fails."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether something is called with the gradient of a leaf."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def has_tensor_hooks(parameter: Tensor) -> bool:
    """Whether somebody has called ``register_hook`` on it."""
    return bool(parameter._backward_hooks)


def hooks_of(leaf: Tensor) -> tuple[list[Any], list[Any]]:
    """What autograd calls with a gradient of a leaf, and what it calls when ``grad`` has it."""
    before, after = leaf._backward_hooks, leaf._post_accumulate_grad_hooks
    return [*(before or {}).values()], [*(after or {}).values()]


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written in place; autograd itself compares it."""
    return tensor._version


def is_view(tensor: Tensor) -> bool:
    """Whether a tensor shares the memory of another one."""
    return tensor._is_view()


def viewed(tensor: Tensor) -> Tensor | None:
    """What a tensor is a view of; None for one with memory of its own."""
    return tensor._base


def values_of(sparse: Tensor) -> Tensor:
    """The values of a sparse tensor, those of equal indices not added up."""
    return sparse._values()


def unsafe_view(tensor: Tensor, shape: Any) -> Tensor:
    """Another shape of a tensor that autograd does not take for a view of it."""
    return cast(Tensor, torch.ops.aten._unsafe_view.default(tensor, shape))


def shared_storage(size: int) -> torch.UntypedStorage:
    """Bytes in shared memory, as the workers of a ``DataLoader`` use them."""
    return cast(torch.UntypedStorage, torch.UntypedStorage._new_shared(size))


def mark_parameter(tensor: Tensor) -> None:
    """Let ``isinstance(tensor, nn.Parameter)`` be true, which mixed precision asks."""
    tensor._is_param = True


def saved_tensor_hooks() -> Any:
    """The hooks of ``torch.autograd.graph.saved_tensors_hooks`` that are in force."""
    from torch._C._autograd import _top_saved_tensors_default_hooks

    return _top_saved_tensors_default_hooks(False)


def storage_number(tensor: Tensor) -> int:
    """Identifies the memory of a tensor, one without data too."""
    return int(tensor.untyped_storage()._cdata)


def wrapper_subclass(cls: type[Tensor], size: Any, **options: Any) -> Any:
    """A tensor of a subclass that has a shape and no memory."""
    return torch.Tensor._make_wrapper_subclass(cls, size, **options)
