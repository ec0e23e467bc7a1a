"""A Python function of the script as an operator of a program."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fleetx.compat.paddle.fluid.layers.common import refused
from fleetx.compat.recorded import operator, rebind, settle


def py_func(
    func: Callable[..., Any],
    x: Any,
    out: Any,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Any = None,
) -> Any:
    """What a function makes of arrays, in variables that exist; no gradient passes it."""
    if backward_func is not None:
        raise refused(
            "py_func",
            "backward_func=...",
            "gives gradients of arrays, which are not covered",
            "write a torch.autograd.Function and call its apply()",
        )
    given = [x] if isinstance(x, Tensor) else list(x)
    outs: list[Any] = [out] if isinstance(out, Tensor) else list(out or ())
    settle(*given)
    kinds = [held.dtype for held in outs]

    def call(*values: Tensor) -> Any:
        found = func(*(value.detach().cpu().numpy() for value in values))
        listed = list(found) if isinstance(found, (list, tuple)) else [found]
        device = values[0].device if values else None
        pairs = zip(listed, kinds, strict=False)
        return tuple(torch.as_tensor(value).to(device, kind) for value, kind in pairs)

    likes = tuple(torch.empty_like(held.fake) for held in outs)
    made = operator(call, *given, like=likes)
    if not outs:
        return None
    for held, found in zip(outs, made, strict=True):
        rebind(held, found)
    return out
