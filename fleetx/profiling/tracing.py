"""A few steps under torch's profiler: what runs beside what.

The trace is a file that https://ui.perfetto.dev and chrome://tracing show. Here it answers two
questions that a stopwatch cannot: how much of the exchanges is hidden behind computation, and when
a card has nothing to do.
"""

import gzip
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fleetx.profiling.intervals import Span, common, length, union, without
from fleetx.profiling.phases import BETWEEN, DATA, MARK, STEP

GAP = 50e-6
"""Seconds between two operators that are Python and autograd, and no wait for an exchange."""
ON_CARD = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
GRAPH = "graph"
"""What a card does in a captured step, whose phases nobody can tell apart."""
ROOM = 400
"""Turns of a lane that a picture has room for."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What a trace says of a mean step, in seconds."""

    steps: int
    host: Mapping[str, float]
    """Phase -> how long the script's thread was in it."""
    exposed: Mapping[str, float]
    """Phase -> how long nothing but an exchange went on in it."""
    hidden: float
    """How long exchanges went on beside computation."""
    card: Mapping[str, float] | None = None
    """Phase that launched it -> how long a card computed; None without a card."""
    idle: Mapping[str, float] = field(default_factory=dict)
    """Phase of the script's thread -> how long a card had nothing to do meanwhile."""
    lanes: Mapping[str, Sequence[tuple[str, float, float]]] = field(default_factory=dict)
    """The last step as a picture: who -> what, begin and length."""


class Tracer:
    """Records the steps between `start` and `stop`.

    Args:
        device: where this worker computes.
    """

    def __init__(self, device: torch.device) -> None:
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)

    def start(self) -> None:
        """Begin."""
        self._profile.start()

    def stop(self, file: Path) -> None:
        """End, and write the trace."""
        self._profile.stop()
        file.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(file))


def read(file: Path) -> Traced | None:
    """What the trace of a worker says; None if not one step is complete in it."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as stream:
        return understood(json.load(stream)["traceEvents"])


def understood(events: Iterable[Mapping[str, Any]]) -> Traced | None:
    """What the events of a trace say of its steps; None if none is complete."""
    whole = [event for event in events if event.get("ph") == "X" and "dur" in event]
    ends = sorted(_span(event)[0] for event in whole if event["name"] == STEP)
    if len(ends) < 2:
        return None
    window, steps = [(ends[0], ends[-1])], len(ends) - 1
    main = next(event["tid"] for event in whole if event["name"] == STEP)
    host = _Host(whole, window[0])
    on_card = any(event.get("cat") in ON_CARD for event in whole)
    work = _on_card(whole, host) if on_card else {"": _operators(whole, main)}
    busy = union(span for spans in work.values() for span in spans)
    exchanges = common(union(_exchanges(whole, on_card)), window)
    alone = without(exchanges, busy)
    if not on_card:  # what goes on while data is read keeps nobody waiting
        alone = without(alone, host.spans(DATA))
    idle = without(window, union([*busy, *exchanges]))
    last = [(ends[-2], ends[-1])]

    def by_phase(spans: Sequence[Span]) -> dict[str, float]:
        return {name: length(common(spans, at)) / steps for name, at in host.phases.items()}

    return Traced(
        steps=steps,
        host=by_phase(window),
        exposed=by_phase(alone),
        hidden=(length(exchanges) - length(alone)) / steps,
        card=_shared_out(work, window, steps) if on_card else None,
        idle=by_phase(idle) if on_card else {},
        lanes=_lanes(host, work if on_card else {}, exchanges, last),
    )


class _Host:
    """What the script's thread did when."""

    def __init__(self, events: Iterable[Mapping[str, Any]], window: Span) -> None:
        marks = sorted(
            (_span(event)[0], str(event["name"]).removeprefix(MARK))
            for event in events
            if str(event["name"]).startswith(MARK)
        )
        self._moments = [moment for moment, _ in marks]
        self._names = [name for _, name in marks]
        # Before the first mark the process is the script's: a step has just ended.
        changes = [(window[0], self.at(window[0]))]
        changes += [mark for mark in marks if window[0] < mark[0] < window[1]]
        self.phases: dict[str, list[Span]] = {}
        ends = [*(moment for moment, _ in changes[1:]), window[1]]
        for (begin, name), end in zip(changes, ends, strict=True):
            self.phases.setdefault(name, []).append((begin, end))

    def at(self, moment: float) -> str:
        """The phase at a moment."""
        place = bisect_right(self._moments, moment)
        return self._names[place - 1] if place else BETWEEN

    def spans(self, phase: str) -> list[Span]:
        """When a phase was in force."""
        return self.phases.get(phase, [])


def _span(event: Mapping[str, Any]) -> Span:
    begin = float(event["ts"]) * 1e-6
    return begin, begin + float(event["dur"]) * 1e-6


def _is_exchange(name: str) -> bool:
    return name.lower().startswith(("nccl", "rccl"))


def _exchanges(events: Iterable[Mapping[str, Any]], on_card: bool) -> list[Span]:
    """Collectives: kernels of NCCL on a card, threads of Gloo without one."""
    if on_card:
        return [_span(e) for e in events if e.get("cat") == "kernel" and _is_exchange(e["name"])]
    return [_span(event) for event in events if str(event["name"]).startswith("gloo:")]


def _on_card(events: Iterable[Mapping[str, Any]], host: _Host) -> dict[str, list[Span]]:
    """What a card computed and copied, by the phase in which it was launched."""
    launched: dict[Any, tuple[float, str]] = {}
    for event in events:
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {}):
            launched[event["args"]["correlation"]] = _span(event)[0], str(event["name"])
    found: dict[str, list[Span]] = {}
    for event in events:
        if event.get("cat") not in ON_CARD or _is_exchange(event["name"]):
            continue
        begin, call = launched.get(event.get("args", {}).get("correlation"), (None, ""))
        phase = host.at(_span(event)[0] if begin is None else begin)
        found.setdefault(GRAPH if "GraphLaunch" in call else phase, []).append(_span(event))
    return {name: union(spans) for name, spans in found.items()}


def _shared_out(
    work: Mapping[str, Sequence[Span]], window: Sequence[Span], steps: int
) -> dict[str, float]:
    """Seconds of a card by phase; what runs beside each other counts once."""
    counted: list[Span] = []
    found: dict[str, float] = {}
    for name, spans in work.items():
        fresh = without(common(spans, window), counted)
        found[name] = length(fresh) / steps
        counted = union([*counted, *fresh])
    return found


def _operators(events: Iterable[Mapping[str, Any]], main: Any) -> list[Span]:
    """When the script's thread computed: operators that call no other, and exchange nothing."""
    own = [e for e in events if e.get("cat") == "cpu_op" and e["tid"] == main]
    own.sort(key=lambda event: (_span(event)[0], -float(event["dur"])))
    leaves: list[Span] = []
    for at, event in enumerate(own):
        begin, end = _span(event)
        is_leaf = at + 1 == len(own) or _span(own[at + 1])[0] >= end
        if is_leaf and "c10d" not in event["name"]:
            leaves.append((begin, end))
    return union(leaves, GAP)


def _lanes(
    host: _Host,
    work: Mapping[str, Sequence[Span]],
    exchanges: Sequence[Span],
    step: Sequence[Span],
) -> dict[str, list[tuple[str, float, float]]]:
    """One step, from its begin."""
    lanes = {"host": host.phases, "card": work, "exchange": {"exchange": exchanges}}
    found: dict[str, list[tuple[str, float, float]]] = {}
    for lane, named in lanes.items():
        turns = [
            (name, begin - step[0][0], end - begin)
            for name, spans in named.items()
            for begin, end in common(union(spans, GAP), step)
        ]
        longest = sorted(turns, key=lambda turn: -turn[2])[:ROOM]
        if longest:
            found[lane] = sorted(longest, key=lambda turn: turn[1])
    return found
