"""Hooks on gradients of tensors that code of others made."""

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.utils.hooks import RemovableHandle


def hook_gradient(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call the hook with the gradient, also of a view that was written to, as by y[:, 0] = x."""
    settle_views((tensor,))
    handle: RemovableHandle = tensor.register_hook(hook)
    return handle


def settle_views(found: Iterable[Tensor]) -> None:
    """Let autograd say where views come from, before anybody registers a hook on them.

    It says so anew for a view that was written to through another one, such as what a linear layer
    makes of three axes, but only to who asks. A hook that does not ask ends torch (2.13) with a
    segmentation fault.
    """
    for tensor in found:
        _ = tensor.grad_fn
