"""``backward`` and ``apply_gradients``: the two halves of ``minimize``, and what is done between.

Scripts change gradients there: they scale them, limit them by hand, or give those of one
parameter to another, such as a copy in full precision.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fleetx import static
from fleetx.compat.paddle.fluid.layers.collective import _c_allreduce
from fleetx.record.variable import Variable

Pairs = Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class Halves:
    """What ``backward`` found, for ``apply_gradients`` to go on with."""

    loss: Variable
    startup: Any
    no_grad_set: Any
    pairs: Pairs

    @classmethod
    def begin(
        cls,
        loss: Variable,
        startup: Any = None,
        parameters: Any = None,
        no_grad_set: Any = None,
        workers: int = 1,
    ) -> "Halves":
        """The first half.

        Args:
            loss: what gradients are of.
            startup: the start-up program that the script named.
            parameters: those to train; all that the loss depends on if None.
            no_grad_set: what gradients do not pass.
            workers: how many there are whose gradients are averaged before a script sees them.
        """
        pairs = static.append_backward(loss, parameters, no_grad_set)
        if workers > 1:
            pairs = [(p, _mean(g, workers)) for p, g in pairs]
        return cls(loss, startup, no_grad_set, pairs)

    def objective(self, given: Pairs) -> tuple[Any, list[Any]]:
        """What is minimised in the second half, and the parameters that move."""
        moved = [parameter for parameter, gradient in given if gradient is not None]
        if all(self._found(parameter, gradient) for parameter, gradient in given):
            return self.loss, moved
        for parameter, _ in self.pairs:
            # Gradients may be computed from those of a parameter that does not move itself.
            parameter.node.meta["stopped"] = False
        # The gradient of sum(p * g) by p is g, so this objective has the gradients that were given.
        terms = [torch.sum(p * _constant(g, p)) for p, g in given if g is not None]
        return torch.sum(torch.stack(terms)), moved

    def _found(self, parameter: Any, gradient: Any) -> bool:
        """Whether a pair is as ``backward`` gave it."""
        return gradient is None or any(p is parameter and g is gradient for p, g in self.pairs)


def _mean(gradient: Variable, workers: int) -> Any:
    """The mean over workers, under the name of the gradient."""
    name = gradient.name
    gradient.name = f"{name}@OWN"
    found = _c_allreduce(gradient) / workers
    found.name = name
    return found


def _constant(gradient: Any, parameter: Any) -> Any:
    """A gradient as numbers of the parameter's format and shape."""
    if not isinstance(gradient, Variable):
        raise TypeError(
            f"apply_gradients() got {gradient!r} as the gradient of {parameter.name!r}; give it "
            "variables, computed from those that backward() returned."
        )
    found = torch.Tensor.to(torch.detach(gradient), parameter.dtype)
    return torch.reshape(found, tuple(parameter.fake.shape))
