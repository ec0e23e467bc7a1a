"""Values on their way from one stage of a pipeline to the next, those of a failed stage too."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fleetx.roles.messages import Described, describe, described
from fleetx.torch_internals import is_view


def sent(
    values: Sequence[Tensor], outgoing: Sequence[Described], *, let_go: bool = False
) -> tuple[Tensor, ...]:
    """As a message holds them: one element after the other, whatever views they are.

    Args:
        values: what a stage returned.
        outgoing: what the next one waits for.
        let_go: whether the schedule detaches in place what was sent, before all of the stage's
            backward has run; an operator may have kept the same tensor for its gradient.
    """
    for value, known in zip(values, outgoing, strict=True):
        shape, kind, _ = describe(value)
        if [shape, kind] != known[:2]:
            raise ValueError(
                f"a stage would send a {kind} of the shape {shape}, and the next one waits for a "
                f"{known[1]} of the shape {known[0]}, as the first batch of this shape gave; let "
                "what a stage returns depend on nothing but the shapes of its inputs."
            )
    ordered = tuple(_in_order(value) for value in values)
    return tuple(t.clone() if t.requires_grad else t for t in ordered) if let_go else ordered


def _in_order(value: Tensor) -> Tensor:
    """No view, and with the strides of a new tensor, those of dimensions of one element too.

    Schedules that split a backward let go of what was sent, which is not possible with a view.
    """
    usual = torch.empty(value.shape, device="meta").stride()
    plain = value.stride() == usual and not is_view(value)
    return value if plain else value.clone(memory_format=torch.contiguous_format)


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
