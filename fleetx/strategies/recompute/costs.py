"""What is kept for backward when segments keep their inputs alone."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fleetx.plan.exchange import Memory
from fleetx.plan.share import Share, Waiting, inside, upwards

if TYPE_CHECKING:
    from fleetx.plan.trace import Trace
    from fleetx.plan.work import Mask


def kept_inputs(share: Share, segments: tuple[str, ...], *, on_host: bool) -> Share:
    """The share when each segment keeps what it was called with, and is replayed in backward.

    Args:
        share: with all that a forward saves.
        segments: paths of submodules.
        on_host: where the inputs wait.
    """
    trace, replayed = share.trace, set(segments)
    assert trace is not None
    outside = tuple(one for one in share.waiting if not inside(one.path, replayed))
    times = {one.part: one.times for one in share.waiting}
    sizes = {one.value: one.size for one in share.waiting}
    inputs = tuple(
        Waiting(
            number,
            call.path,
            call.part,
            sizes.get(number, trace.values[number].size),
            times.get(call.part, 1),
        )
        for call in trace.calls
        if call.path in replayed and call.part in share.parts
        for number in call.reads
        if number not in trace.own
    )
    kept = {(one.value, one.part) for one in (*outside, *inputs)}
    inner = [one for one in share.waiting if (one.value, one.part) not in kept]
    largest = Memory(
        what="what the largest segment keeps while it is replayed",
        kept_bytes=_largest(inner, replayed),
        decided_by="recompute = True",
        passing=True,
    )
    once = share.subject.once
    ends = once(("ends of segments", trace.form, segments), lambda: _ends(trace, replayed))
    share = replace(share, replayed=ends).with_memory(largest)
    if share.work is not None:
        key = "replayed", trace.form, segments
        here = np.isin(trace.part_of_each, share.parts)
        again = once(key, lambda: _again(share, trace))[here]
        share = replace(share, work=share.work.replayed(again))
    if on_host:
        return replace(share, waiting=outside, waiting_on_host=inputs)
    return replace(share, waiting=(*outside, *inputs))


def let_go(share: Share, trace: "Trace") -> int:
    """How many tensors the segments of a rank do not keep."""
    here = (one for one in trace.saved if one.part in share.parts)
    return sum(
        any((path, one.part) in share.replayed for path in upwards(one.path)) for one in here
    )


def _again(share: Share, trace: "Trace") -> "Mask":
    """Which operators run a second time."""
    found = (share.runs(one.path, one.part, one.at) > 1 for one in trace.operations)
    return np.fromiter(found, np.bool_, len(trace.operations))


def _ends(trace: "Trace", segments: Collection[str]) -> dict[tuple[str, int], int]:
    """When each segment has saved the last thing, after which its replay need not go on."""
    found: dict[tuple[str, int], int] = {}
    for saved in trace.saved:
        for path in upwards(saved.path):
            if path in segments:
                found[path, saved.part] = saved.at
    return found


def _largest(inner: Collection[Waiting], segments: Collection[str]) -> int:
    """Of one micro-batch: backwards replay one segment at a time."""
    found = defaultdict[tuple[str, int], dict[int, int]](dict)
    for one in inner:
        segment = next(path for path in upwards(one.path) if path in segments)
        sizes = found[segment, one.part]
        sizes[one.value] = max(sizes.get(one.value, 0), one.size)
    return max((sum(sizes.values()) for sizes in found.values()), default=0)
