"""The measurements: every case on every link, and the collectives by themselves."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.exchanges import collectives
from benchmarks.exchanges.cases import Flags, Traffic, legal, limit, traffic
from benchmarks.exchanges.links import LINKS, Lab
from benchmarks.exchanges.models import MODELS
from benchmarks.exchanges.records import Case, Records, Timed, machine, replace_json

SPAN = 0.6
"""Seconds for which a round lasts at least, unless that are very many updates."""
MOST = 24
"""Updates of a round at most."""

MOST_FAILURES = 3

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What shall be measured, and how often."""

    workers: Sequence[int]
    models: Sequence[str]
    links: Sequence[str]
    flags: Callable[[str], bool]
    rounds: int
    again: bool
    """Also what is known already."""

    def missing(self, records: Records, size: int) -> list[tuple[str, Flags]]:
        """Models and sets that are to be measured with so many workers."""
        every = [flags for flags in legal(size) if self.flags(flags.name)]
        pairs = [(model, flags) for model in self.models for flags in every]
        return [
            (model, flags)
            for model, flags in pairs
            if self.again or not self._known(records, (model, size, flags.name))
        ]

    def _known(self, records: Records, key: tuple[str, int, str]) -> bool:
        return key in records and {"free", *self.links} <= records[key].links.keys()


def measure_cases(records: Records, wanted: Wanted, say: Say) -> None:
    """Measure what is wanted, and save after each case.

    One after the other in the same workers; after a failure in new ones.
    """
    for size in wanted.workers:
        todo = wanted.missing(records, size)
        at, failures = 0, 0
        while at < len(todo) and failures < MOST_FAILURES:
            with Lab(size) as lab:
                for model, flags in todo[at:]:
                    at += 1
                    name = f"{at}/{len(todo)} {size} workers, {model}, {flags.name}"
                    try:
                        case = measured(lab, model, flags, ("free", *wanted.links), wanted.rounds)
                    except RuntimeError as error:
                        failures += 1
                        say(f"{name}: failed: {error}")
                        break
                    records.keep(case)
                    records.save()
                    say(f"{name}: {in_short(case)}")


def in_short(case: Case) -> str:
    """A case on one line."""
    found = []
    for link, timed in case.links.items():
        share = f" ({case.reached(link):.0%})" if LINKS[link] else ""
        found.append(f"{link} {1e3 * timed.median:.1f} ms{share}")
    return ", ".join(found)


def measured(lab: Lab, model: str, flags: Flags, links: Sequence[str], rounds: int) -> Case:
    """One case on some links, a round on each before the next round begins."""
    told = traffic(flags, MODELS[model], lab.size)
    lab.set_rate("free")
    lab.ask({"do": "build", "model": model, "settings": dict(flags.settings)})
    lab.ask({"do": "steps", "updates": 4})
    free = max(a["seconds"] for a in lab.ask({"do": "steps", "updates": 4}))
    found = {link: Timed() for link in links}
    for _ in range(rounds):
        for link, timed in found.items():
            lab.set_rate(link)
            updates = _updates(limit(free, told.sent, link, told.beside))
            answers = lab.ask({"do": "steps", "updates": updates})
            timed.seconds.append(max(a["seconds"] for a in answers))
            timed.sent = max(a["sent"] for a in answers)
            timed.busy = max(a["busy"] for a in answers)
    lab.set_rate("free")
    lab.ask({"do": "end"})
    sent = _as_met(told, found) if told.each_time else told.sent
    return Case(model, lab.size, flags.name, sent, told.beside, list(told.lines), found)


def _as_met(told: Traffic, found: dict[str, Timed]) -> float:
    """What was sent where only the run decides how often: as many as the link saw."""
    met = min(max(1, round(timed.sent / told.each_time)) for timed in found.values())
    return told.sent + (met - 1) * told.each_time


def _updates(seconds: float) -> int:
    """An even number, so that what happens in every second update has its share."""
    wanted = min(MOST, max(2, math.ceil(SPAN / seconds)))
    return wanted + wanted % 2


def measure_collectives(
    path: Path, workers: Sequence[int], links: Sequence[str], rounds: int, say: Say
) -> None:
    """Seconds of each collective for each size, link and number of workers."""
    rows: list[dict[str, Any]] = []
    for size in workers:
        with Lab(size) as lab:
            for link in ("free", *links):
                lab.set_rate(link)
                began = time.monotonic()
                rows += [_collective(lab, name, link, rounds) for name in collectives.NAMES]
                replace_json(path, {"machine": machine(), "rows": rows}, "rows")
                say(f"{size} workers, {link}: {time.monotonic() - began:.0f} s")


def _collective(lab: Lab, name: str, link: str, rounds: int) -> dict[str, Any]:
    points = []
    for count in collectives.SIZES:
        expected = 1e-3 + 16 * count / (LINKS[link] or 5e9)
        repeats = max(3, min(5 * rounds, math.ceil(SPAN / 3 / expected)))
        answers = lab.ask({"do": "collective", "name": name, "bytes": count, "repeats": repeats})
        sent = max(a["sent"] for a in answers) / repeats
        points.append({"bytes": count, "seconds": collectives.worst(answers), "sent": sent})
    alpha, beta = collectives.line([(p["bytes"], p["seconds"]) for p in points])
    return {
        "collective": name,
        "workers": lab.size,
        "link": link,
        "alpha_seconds": round(alpha, 7),
        "seconds_per_byte": float(f"{beta:.4g}"),
        "points": [
            {"bytes": point["bytes"]}
            | {key: float(f"{point[key]:.5g}") for key in ("seconds", "sent")}
            for point in points
        ],
    }
