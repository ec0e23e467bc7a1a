"""What a forward must leave alone while it is followed: modules and random states."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from fleetx.record.side_effects import Attributes, drawn_from, random_states
from fleetx.strategies.pipeline.refusal import REMEDY, TraceError


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put back whatever changes in the model, and refuse a forward that changed something."""
    before = {name: Attributes(module) for name, module in model.named_modules()}
    dice = random_states()
    try:
        yield
    except BaseException:
        for attributes in before.values():
            attributes.restore()
        raise
    changes = [f"{name}.{key}".lstrip(".") for name, a in before.items() for key in a.restore()]
    if changes:
        raise TraceError(
            f"the forward changes {', '.join(repr(name) for name in changes)} of the model, which "
            f"would happen once instead of at every step: {REMEDY}."
        )
    drawing = drawn_from(dice)
    if drawing is not None:
        raise TraceError(
            f"the forward draws random numbers from {drawing}, which would be the same at every "
            f"step: {REMEDY}."
        )
