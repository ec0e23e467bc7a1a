"""What a rank holds at the moment when most is there."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

from fleetx.plan.accounts import Needs
from fleetx.plan.backward_memory import (
    as_it_begins,
    as_it_begins_beside_outputs,
    in_its_course,
)
from fleetx.plan.share import Share, kept_bytes


def held_by(needs: Needs, share: Share) -> dict[str, float]:
    """What there is when most is there: as the backward begins, or in the middle of it.

    Or as the first one of a new job begins, when the optimizer keeps nothing yet.
    """
    moments = [_as_it_begins(needs, share), _in_its_middle(needs, share)]
    if (first := share.at_first) is not None:
        new = replace(needs, state=0, activations=kept_bytes(first.waiting))
        moments.append(_as_it_begins(new, first))
    parts = max(moments, key=lambda held: sum(held.values()))
    return {what: float(size) for what, size in parts.items() if size}


def _as_it_begins(needs: Needs, share: Share) -> dict[str, int]:
    """Outputs and the criterion's gradients are there, and where they come anew no others."""
    assert share.trace is not None
    last = share.trace.part_of_each.max(initial=0)
    if not share.trace.has_criterion or last not in share.parts:
        return {}
    passing = as_it_begins if share.mesh["pp"] == 1 else as_it_begins_beside_outputs
    parts = _always(needs, share) | {
        "outputs, and gradients of the criterion": _once(share, passing)
    }
    return parts | {"gradients": 0 if _come_anew(share) else needs.gradients}


def _come_anew(share: Share) -> bool:
    """Whether no gradients are there before the backward: else buckets or sums keep them."""
    together = share.mesh["dp"] * share.mesh["sharding"] > 1
    return share.run.batches * share.run.micro_batches == 1 and not together


def _in_its_middle(needs: Needs, share: Share) -> dict[str, int]:
    """With gradients of values, which grow while what was saved is let go.

    Blocks that are replayed have saved nothing to let go: the largest value of all counts there.
    """
    assert share.trace is not None
    parts = _always(needs, share) | {"gradients": needs.gradients}
    if _come_anew(share) and not share.replayed and share.mesh["tp"] * share.mesh["pp"] == 1:
        trained = (name for name, piece in share.subject.parameters().items() if piece.trained)
        most = _once(share, in_its_course, frozenset(trained))
        parts["gradients"] = min(most, needs.gradients)
        parts["gradients of activations"] = most - parts["gradients"]
    elif share.replayed:
        parts["gradients of activations"] = share.trace.largest
    else:
        parts["gradients of activations"] = _once(share, in_its_course)
    for one in needs.extra:
        if one.passing:
            parts[one.what] = parts.get(one.what, 0) + one.kept_bytes
    return parts


def _once(share: Share, found: Callable[..., int], *given: Hashable) -> int:
    """What is the same for all plans with such batches."""
    assert share.trace is not None
    key = found.__name__, given, share.trace.form, share.run.micro_batches, share.subject.samples()
    return share.subject.once(key, partial(found, share.trace, *given))


def _always(needs: Needs, share: Share) -> dict[str, int]:
    assert share.trace is not None
    values = share.trace.values
    kept = [one for one in share.waiting if one.value in values and values[one.value].given]
    parts = {
        "batch": max(0, share.batch_bytes - kept_bytes(kept)),
        "parameters": needs.parameters,
        "gradients": 0,
        "optimizer state": needs.state or 0,
        "buffers": needs.buffers,
        "activations": needs.activations or 0,
    }
    for one in needs.extra:
        if not one.passing:
            parts[one.what] = parts.get(one.what, 0) + one.kept_bytes
    return parts
