"""A word for scripts whose hooks see the gradients of one worker: ``p.register_hook(limit)``."""

import logging
from dataclasses import replace

from torch import nn

from fleetx.plan.step import Step
from fleetx.torch_internals import has_tensor_hooks

logger = logging.getLogger(__name__)


def tell_of_own_hooks(step: Step, model: nn.Module, *, speaks: bool) -> Step:
    """Look once, before the first update.

    Args:
        step: what is done to a batch.
        model: whose parameters may have hooks.
        speaks: whether this worker says it, for all.
    """
    looked = not speaks

    def update() -> bool:
        nonlocal looked
        if not looked:
            looked = True
            found = (name for name, p in model.named_parameters() if has_tensor_hooks(p))
            if (name := next(found, None)) is not None:
                logger.warning(
                    "%r has a hook of register_hook(), which sees the gradient of one worker, "
                    "before workers have averaged theirs: what it multiplies or masks is right, "
                    "and limits, signs and norms are of that worker alone. Change p.grad after the "
                    "backward instead, where it is that of all",
                    name,
                )
        return step.update()

    return replace(step, update=update)
