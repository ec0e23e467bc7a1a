"""Values on their way from one stage of a pipeline to the next, those of a failed stage too."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fleetx.comm.messages import Described, described


def sent(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As a message holds them: one element after the other, whatever views they are."""
    return tuple(value.contiguous() for value in values)


def received(values: Sequence[Tensor]) -> list[Tensor]:
    """The same values, whose gradients go back in the same way."""
    return [_answered(value) if value.requires_grad else value for value in values]


def _answered(value: Tensor) -> Tensor:
    seen = value.view_as(value)
    seen.register_hook(Tensor.contiguous)
    return seen


def stand_in(
    values: Sequence[Tensor], outgoing: Sequence[Described], device: torch.device
) -> tuple[Tensor, ...]:
    """Zeros in place of what a stage could not compute, with gradients of zero for its inputs.

    The other ranks wait for messages of this one; they get them, and learn afterwards that they
    are worth nothing.
    """
    nothing = torch.zeros((), device=device)
    for value in values:
        if value.requires_grad:
            nothing = nothing + value.sum().float() * 0
    made = [(described(known, device), known[2]) for known in outgoing]
    if not nothing.requires_grad:
        return tuple(zeros for zeros, _ in made)
    return tuple(zeros.detach() + nothing.to(zeros) if wanted else zeros for zeros, wanted in made)
