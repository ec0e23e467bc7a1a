"""The hook that begins a batch with the first forward of the model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from fleetx.roles import activity
from fleetx.torch_internals import before_forward


class BeforeForward:
    """Begins a batch when the model is called with gradients on; copies of it lose the hook."""

    def __init__(self, begin: Callable[[Any], None]) -> None:
        self._begin = begin

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin a batch, unless one has begun."""
        # Not only in training mode: fine-tuning with frozen statistics runs in eval mode.
        if torch.is_grad_enabled():
            self._begin((args, kwargs))
        elif not torch.compiler.is_compiling():
            activity.enter("evaluating")

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _idle_hook, ()


def is_laid_out(model: nn.Module) -> bool:
    """Whether an engine has made it its own; copies of it are nobody's."""
    return any(isinstance(hook, BeforeForward) for hook in before_forward(model))


def _idle_hook() -> Callable[[nn.Module, Any, Any], None]:
    return _do_nothing


def _do_nothing(module: nn.Module, args: Any, kwargs: Any) -> None:
    pass
