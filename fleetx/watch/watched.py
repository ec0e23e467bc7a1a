"""A job as its machines tell it: lines become what a page shows."""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from fleetx.watch.reading import Line

WINDOW = 10.0
"""Seconds over which rates are taken."""
POINTS = 1500
"""Points of a curve; more are thinned out."""
SAID = 60
"""Sentences of the launcher that are shown."""
SILENT = 15.0
"""Seconds without a word after which a launcher is taken for gone."""
QUIET = 10.0
"""Seconds without progress after which it is shown."""
RUN = 120.0
"""Seconds by which machines of one run may begin apart."""
SLOW = 0.2
"""By how much less than others a rank waits for them, or how much slower it is alone."""
WAITS = 0.25
"""The share of its time that a rank waits before it matters for whom."""

Point = tuple[float, float, float | None, float | None]
"""Of a curve: time, step, loss, samples in a second."""


@dataclass
class Process:
    """One worker or server: what it told last, and counts of the last seconds."""

    told: dict[str, Any]
    host: str = ""
    counts: deque[tuple[float, dict[str, float]]] = field(default_factory=deque)

    def take(self, at: float, told: dict[str, Any], host: str) -> None:
        """It has told more."""
        self.told, self.host = told, host
        self.counts.append((at, _counts(told)))
        # A rate begins with the first step, not with the start of the process.
        while len(self.counts) > 2 and (
            at - self.counts[1][0] > WINDOW or not any(self.counts[1][1].values())
        ):
            self.counts.popleft()

    def rate(self, name: str) -> float | None:
        """How much a count grows in a second."""
        if len(self.counts) < 2:
            return None
        (begin, before), (end, after) = self.counts[0], self.counts[-1]
        if end <= begin or name not in before or name not in after:
            return None
        return max(0.0, after[name] - before[name]) / (end - begin)


def _counts(told: Mapping[str, Any]) -> dict[str, float]:
    known = {name: float(told[name]) for name in ("ended", "calls") if name in told}
    tables = [table for table in told.get("tables", {}).values() if "rows" in table]
    return known | {n: float(sum(t.get(n, 0) for t in tables)) for n in ("pulled", "pushed")}


class Watched:
    """What is known of a job; lines are taken in the order of time."""

    def __init__(self) -> None:
        self._began = 0.0
        self._last = 0.0
        self._job: Line = {}
        self._facts: Line = {}
        self._stuck: Line = {}
        self._end: Line = {}
        self._workers: dict[int, Process] = {}
        self._servers: dict[int, Process] = {}
        self._said: deque[Line] = deque(maxlen=SAID)
        self.points: list[Point] = []
        self.restarts: list[float] = []

    def take(self, line: Line) -> None:
        """One more line."""
        at = float(line["at"])
        if at < self._began - RUN:
            return  # of an earlier run in the same folder
        take = getattr(self, f"_take_{line['kind']}", None)
        if take is not None:
            self._last = max(self._last, at)
            take(at, line)

    def _take_job(self, at: float, line: Line) -> None:
        if line["attempt"] == 0 and at > self._began + RUN:
            vars(self).update(vars(Watched()))  # a new run in the same folder
            self._last = at
        if line["attempt"] > self._job.get("attempt", -1):
            if self._job:
                self.restarts.append(at)
            self._workers, self._servers, self._stuck = {}, {}, {}
        self._job = line
        self._end = {}
        self._began = self._began or at

    def _current(self, line: Line) -> bool:
        return bool(line.get("attempt", 0) == self._job.get("attempt", 0))

    def _take_facts(self, at: float, line: Line) -> None:
        if self._current(line):
            self._facts = line

    def _take_stuck(self, at: float, line: Line) -> None:
        if self._current(line):
            self._stuck = line if line.get("culprits") else {}

    def _take_said(self, at: float, line: Line) -> None:
        self._said.append(line)

    def _take_end(self, at: float, line: Line) -> None:
        if self._current(line):
            self._end, self._stuck = line, {}

    def _take_ranks(self, at: float, line: Line) -> None:
        if not self._current(line):
            return
        self._end = {}  # that of a machine which left the others
        for name, known in (("ranks", self._workers), ("servers", self._servers)):
            for rank, told in line.get(name, {}).items():
                process = known.setdefault(int(rank), Process({}))
                process.take(at, told, str(line.get("host", "")))
        self._add_point(at, line.get("ranks", {}))

    def _add_point(self, at: float, told: Mapping[str, Line]) -> None:
        """The first machine's lines make the curves, so that a moment has one point."""
        if "0" not in told:
            return
        losses = [loss for each in told.values() if (loss := _finite(each.get("loss"))) is not None]
        step = max(float(each.get("batches", 0)) for each in told.values())
        self.points.append((at, step, fmean(losses) if losses else None, self._samples()))
        if len(self.points) > POINTS:
            old = len(self.points) * 3 // 4
            self.points[:old] = self.points[:old:2]

    def since(self, at: float) -> list[Point]:
        """The points that came after a time."""
        first = len(self.points)
        while first and self.points[first - 1][0] > at:
            first -= 1
        return self.points[first:]

    def _samples(self) -> float | None:
        """Samples of the whole job in a second: ranks that share theirs are counted once."""
        mesh = self._facts.get("plan", {}).get("mesh", {})
        shares: dict[int, list[float]] = {}
        for rank, process in self._workers.items():
            if (one := _samples(process)) is not None:
                # Workers that meet at servers have a mesh each, and data of their own.
                share = rank if self._servers else _share(mesh, rank)
                shares.setdefault(share, []).append(one)
        return sum(fmean(share) for share in shares.values()) if shares else None

    def now(self, at: float) -> dict[str, Any]:
        """What the page shows at this time."""
        state, words = self._state(at)
        over = state in ("done", "failed", "lost")
        ranks = list(self._ranks(over))
        losses = [rank["loss"] for rank in ranks if rank["loss"] is not None]
        return {
            "at": at,
            "state": state,
            "words": words,
            "job": {
                **{k: v for k, v in self._job.items() if k not in ("kind", "at")},
                "began": self._began,
                "last": self._last,
                "hosts": sorted({each.host for each in self._workers.values()}),
            },
            "totals": {
                "step": max((rank["step"] for rank in ranks), default=0),
                "rate": _mean(rank["rate"] for rank in ranks),
                "samples": self._samples(),
                "loss": fmean(losses) if losses else None,
                "exchange": _mean(rank["exchange"] for rank in ranks),
                "memory": max((rank["memory"] or 0 for rank in ranks), default=0),
            },
            "plan": self._facts.get("plan"),
            "ranks": ranks,
            "servers": [_server(rank, each) for rank, each in sorted(self._servers.items())],
            "said": [{"at": line["at"], "text": line["text"]} for line in self._said],
        }

    def _state(self, at: float) -> tuple[str, str]:
        """In a word, and in a sentence if there is something to say."""
        if not self._job:
            return "waiting", "Nothing has been written here yet; the page begins with the job."
        if self._end:
            code = self._end.get("code")
            return ("done", "") if code == 0 else ("failed", f"The job {_failed(code)}.")
        if (silent := at - self._last) > SILENT:
            return "lost", f"The launcher has said nothing for {silent:.0f} s; it is gone."
        return ("stuck", str(self._stuck["sentence"])) if self._stuck else self._alive()

    def _alive(self) -> tuple[str, str]:
        told = [each.told for each in self._workers.values()]
        if any(one.get("state") == "failed" for one in told):
            return "hurt", f"{'; '.join(self._dead())}."
        if any(one.get("batches") for one in told):
            return "running", ""
        return "starting", "The workers are starting."

    def _dead(self) -> Iterator[str]:
        for rank, process in sorted(self._workers.items()):
            if process.told.get("state") == "failed":
                yield f"Rank {rank} {_failed(process.told.get('code'))}"

    def _ranks(self, over: bool) -> Iterator[dict[str, Any]]:
        known = sorted(self._workers.items())
        most = int(self._job.get("workers", len(known)))
        shown = [_worker(rank, each) for rank, each in known if rank < most]
        slow = {} if over else slow_ranks(shown)
        for rank in shown:
            number = rank["rank"]
            if not over and number in self._stuck.get("culprits", ()):
                rank["flag"], rank["why"] = "stuck", "others wait for it"
            elif not over and number in self._stuck.get("waiting", ()):
                rank["flag"], rank["why"] = "waits", "waits for another rank"
            elif rank["state"] == "failed":
                rank["flag"], rank["why"] = "dead", _failed(rank["code"])
            elif not over and rank["state"] == "running" and rank["still"] > QUIET:
                rank["flag"], rank["why"] = "quiet", f"nothing new for {rank['still']:.0f} s"
            elif rank["not_finite"]:
                rank["flag"], rank["why"] = "not finite", "its loss is not a number"
            elif number in slow:
                rank["flag"], rank["why"] = "slow", slow[number]
            yield rank


def _worker(rank: int, process: Process) -> dict[str, Any]:
    told, rate = process.told, process.rate("ended")
    return {
        "rank": rank,
        "host": process.host,
        "state": told.get("state", "starting"),
        "code": told.get("code"),
        "doing": told.get("doing", ""),
        "place": told.get("place", ""),
        "still": float(told.get("still", 0.0)),
        "step": int(told.get("batches", 0)),
        "rate": rate,
        "samples": _samples(process),
        "memory": told.get("memory"),
        "memory_peak": told.get("memory_peak"),
        "memory_total": told.get("memory_total"),
        "exchange": _exchange(told, rate),
        "loss": _finite(told.get("loss")),
        "not_finite": told.get("loss") is not None and _finite(told["loss"]) is None,
        "flag": "",
        "why": "",
    }


def _server(rank: int, process: Process) -> dict[str, Any]:
    tables = process.told.get("tables", {})
    return {
        "rank": rank,
        "host": process.host,
        "state": process.told.get("state", "starting"),
        "code": process.told.get("code"),
        "memory": process.told.get("memory"),
        "rows": sum(table.get("rows", 0) for table in tables.values()),
        "numbers": sum(table.get("numbers", 0) for table in tables.values()),
        "pulled": process.rate("pulled"),
        "pushed": process.rate("pushed"),
        "tables": tables,
    }


def _samples(process: Process) -> float | None:
    rate, size = process.rate("calls"), process.told.get("batch_size")
    return None if rate is None or size is None else rate * float(size)


def _exchange(told: Mapping[str, Any], rate: float | None) -> float | None:
    """The share of its time that a rank spends in exchanges: seen from outside, and by DDP."""
    if "exchanging" not in told:
        return None
    inside = float(told.get("exchange_seconds", 0.0)) * (rate or 0.0)
    return min(1.0, float(told["exchanging"]) + inside)


def _share(mesh: Mapping[str, int], rank: int) -> int:
    """Which share of the data a rank works on; as `fleetx.plan.mesh.data_place` has it."""
    if not mesh:
        return rank
    return rank // mesh["tp"] % (mesh["dp"] * mesh["sharding"])


def slow_ranks(ranks: list[dict[str, Any]]) -> dict[int, str]:
    """Ranks that hold the others up, and why they are taken for that.

    Ranks that wait for each other all make the same number of steps; the slow one is the one that
    does not wait. Ranks that do not wait for each other differ in their rates.
    """
    running = [rank for rank in ranks if rank["state"] == "running" and rank["rate"] is not None]
    if len(running) < 2:
        return {}
    found: dict[int, str] = {}
    usual_wait = median(rank["exchange"] or 0.0 for rank in running)
    most_wait = max(rank["exchange"] or 0.0 for rank in running)
    usual_rate = median(rank["rate"] for rank in running)
    wait = most_wait if len(running) == 2 else usual_wait
    for rank in running:
        own = rank["exchange"] or 0.0
        if rank["rate"] < (1 - SLOW) * usual_rate:
            found[rank["rank"]] = f"{rank['rate']:.3g} steps/s, others {usual_rate:.3g}"
        elif wait >= WAITS and own < wait - SLOW:
            found[rank["rank"]] = f"others wait {wait:.0%} of their time, it {own:.0%}"
    return found


def _finite(value: Any) -> float | None:
    """A number that JSON and curves can have."""
    return float(value) if value is not None and math.isfinite(value) else None


def _failed(code: Any) -> str:
    if code is None:
        return "has failed"
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
