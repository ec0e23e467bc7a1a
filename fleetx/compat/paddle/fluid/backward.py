"""``paddle.fluid.backward``: gradients as variables of a program."""

from collections.abc import Iterable
from typing import Any

from fleetx import static
from fleetx.compat.notes import note


def append_backward(
    loss: Any,
    parameter_list: Iterable[Any] | None = None,
    no_grad_set: Iterable[Any] | None = None,
    callbacks: Any = None,
    checkpoints: Any = None,
) -> list[tuple[Any, Any]]:
    """Pairs of parameter and gradient of ``loss``.

    Args:
        loss: what gradients are of.
        parameter_list: those to find; all that the loss depends on if None.
        no_grad_set: what gradients do not pass.
        callbacks: refused, because no operators are appended one by one.
        checkpoints: has no effect on the numbers; ``strategy.recompute`` saves memory by them.
    """
    if callbacks:
        raise NotImplementedError(
            "append_backward(callbacks=...) is called for each operator of Paddle's backward pass, "
            "and torch makes that when the program runs; leave it out."
        )
    if checkpoints:
        note("append_backward(checkpoints=…)", "strategy.recompute saves memory by them here.")
    return list(static.append_backward(loss, parameter_list, no_grad_set))


def gradients(
    targets: Any, inputs: Any, target_gradients: Any = None, no_grad_set: Any = None
) -> list[Any]:
    """The gradients of the sum of ``targets`` by each of ``inputs``."""
    return list(static.gradients(targets, inputs, target_gradients, no_grad_set))


calc_gradient = gradients


def _append_grad_suffix_(name: str) -> str:
    """What the gradient of a variable is called."""
    return f"{name}@GRAD"
