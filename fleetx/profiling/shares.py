"""The parts of a worker's step, which sum to the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fleetx.profiling.phases import (
    BACKWARD,
    BETWEEN,
    DATA,
    FORWARD,
    PHASES,
    SCRIPT,
    UPDATE,
)
from fleetx.profiling.tracing import GRAPH, Traced

EXCHANGE, HOST = "exchange", "host"
PARTS = (DATA, FORWARD, BACKWARD, GRAPH, EXCHANGE, UPDATE, HOST, SCRIPT)
WORDS = {
    DATA: "waiting for data",
    FORWARD: "forward",
    BACKWARD: "backward",
    GRAPH: "captured step",
    EXCHANGE: "exchange, not hidden",
    UPDATE: "update",
    HOST: "card waits for the host",
    SCRIPT: "other lines of the script",
    BETWEEN: "other lines of the script",
}


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What was measured on one worker."""

    rank: int
    laps: Sequence[Mapping[str, float]]
    """Phase -> seconds, of each step that was only timed."""
    loads: bool
    """Whether the script was seen to wait for a ``DataLoader``."""
    traced: Traced | None = None
    on_card: bool = False

    @property
    def step(self) -> float:
        """Seconds of a mean step."""
        return fmean(sum(lap.values()) for lap in self.laps)

    @property
    def parts(self) -> dict[str, float]:
        """Part -> seconds of a mean step."""
        spent = {name: fmean(lap.get(name, 0.0) for lap in self.laps) for name in PHASES}
        spent[SCRIPT if self.loads else DATA] += spent.pop(BETWEEN)
        traced = self.traced and _merged(self.traced, loads=self.loads)
        found = _of_card(self.step, spent, traced) if self.on_card else _of_host(spent, traced)
        return {name: found[name] for name in PARTS if name in found}

    @property
    def hidden(self) -> float | None:
        """Seconds of exchanges behind computation; None if no trace tells."""
        return None if self.traced is None else self.traced.hidden

    @property
    def own(self) -> float:
        """Seconds of a step in which it does not wait for others."""
        return self.step - self.parts.get(EXCHANGE, 0.0)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        lanes = {} if self.traced is None else dict(self.traced.lanes)
        return {
            "rank": self.rank,
            "steps": len(self.laps),
            "step_seconds": self.step,
            "parts_seconds": self.parts,
            "hidden_exchange_seconds": self.hidden,
            "last_traced_step": lanes,
        }


def _merged(traced: Traced, *, loads: bool) -> Traced:
    """With the time between two steps where it belongs."""

    def moved(named: Mapping[str, float]) -> dict[str, float]:
        found = dict(named)
        between = found.pop(BETWEEN, 0.0)
        home = SCRIPT if loads else DATA
        found[home] = found.get(home, 0.0) + between
        return found

    return Traced(
        steps=traced.steps,
        host=moved(traced.host),
        exposed=moved(traced.exposed),
        hidden=traced.hidden,
        card=None if traced.card is None else moved(traced.card),
        idle=moved(traced.idle),
    )


def _of_host(spent: Mapping[str, float], traced: Traced | None) -> dict[str, float]:
    """Without a card, phases are what the thread does; exchanges are a share of them.

    Profiled steps are slower than others, so their trace gives shares and the stopwatch seconds.
    """
    found = dict(spent)
    if traced is None:
        return found
    found[EXCHANGE] = 0.0
    for name, alone in traced.exposed.items():
        waited = found.get(name, 0.0) * min(1.0, alone / max(traced.host[name], 1e-12))
        found[name] -= waited
        found[EXCHANGE] += waited
    return found


def _of_card(step: float, spent: Mapping[str, float], traced: Traced | None) -> dict[str, float]:
    """With a card, phases are what it does for them; the rest of the step it has nothing to do.

    The profiler slows the host down and not the card, so the idle time is what a step without it
    leaves.
    """
    if traced is None or traced.card is None:
        return dict(spent)
    found = dict(traced.card)
    # Copies that bring a batch to the card are no wait for data.
    found[SCRIPT] = found.get(SCRIPT, 0.0) + found.pop(DATA, 0.0)
    found[EXCHANGE] = sum(traced.exposed.values())
    idle = max(0.0, step - sum(found.values()))
    nothing = sum(traced.idle.values())
    starved = traced.idle.get(DATA, 0.0) / nothing if nothing else 0.0
    return found | {DATA: idle * starved, HOST: idle * (1 - starved)}
