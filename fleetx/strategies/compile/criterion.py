"""A criterion as compiled code, unless it does what such code cannot."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from fleetx.comm.gradient_hooks import hook_gradient
from fleetx.comm.nested import tensors
from fleetx.plan.error import PlanError

_DIFFERENTIATES = (
    "strategy.compile = True makes code of the criterion, which differentiates by itself "
    "(torch.autograd.grad), and compiled code cannot be differentiated twice. Set "
    "compile_configs['criterion'] to False."
)
Criterion = Callable[[Any, Any], Tensor]


class CompiledCriterion:
    """Runs the user's own criterion once, and code that was made of it from then on.

    Code of torch.compile loses, or stops at, what a criterion differentiates by itself, as
    penalties of gradients do. The first batch tells whether it does so; one that begins later is
    seen by what it sends back through the outputs. A job that goes on from a checkpoint was looked
    at when it began: what the plain criterion keeps, and the optimizer's state, are not there at
    the same time, so that what fits as a new job fits later on.

    Args:
        plain: the user's own.
        compiled: the same as code.
        has_moved: whether updates were made before this job.
    """

    def __init__(
        self, plain: Criterion, compiled: Criterion, has_moved: Callable[[], bool]
    ) -> None:
        self._plain, self._compiled, self._has_moved = plain, compiled, has_moved
        self._looked = self._made = False

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """The loss."""
        self._looked = self._looked or self._has_moved()
        if self._looked:
            self._made = True
            return self._watched(outputs, targets)
        with _Differentiating() as seen:
            loss = self._plain(outputs, targets)
        if seen.differentiates:
            raise PlanError(_DIFFERENTIATES)
        self._looked = True
        return loss

    def _watched(self, outputs: Any, targets: Any) -> Tensor:
        sent: list[bool] = []
        hooks = [
            hook_gradient(tensor, lambda gradient: sent.append(True))
            for tensor in tensors(outputs)
            if tensor.requires_grad
        ]
        try:
            return self._compiled(outputs, targets)
        finally:
            for hook in hooks:
                hook.remove()
            if sent:  # whatever came of it, this is the reason
                raise PlanError(_DIFFERENTIATES)

    def is_made(self) -> bool:
        """Whether code was made of it, which no step that is being recorded can do."""
        return self._made


class _Differentiating(TorchFunctionMode):
    """Sees whether something is differentiated."""

    differentiates = False

    @override
    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.differentiates |= func in {torch.autograd.grad, torch.autograd.backward}
        self.differentiates |= func is Tensor.backward
        return func(*args, **(kwargs or {}))
