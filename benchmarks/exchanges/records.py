"""What was measured, as data that is kept: written after each case, so that nothing is lost."""

import json
import os
import platform
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.exchanges.cases import limit

GOAL = 0.8
"""The share of its limit that every set reaches on the slowest link."""


@dataclass
class Timed:
    """One case on one link."""

    seconds: list[float] = field(default_factory=list)
    """Of an update, on the slowest worker: the mean of each round."""
    busy: float = 0.0
    """Seconds of the processor for each update, of the worker that needed most."""
    sent: float = 0.0
    """Bytes that left the worker that sent the most, for each update, with TCP's own."""

    @property
    def median(self) -> float:
        """Seconds of an update."""
        return statistics.median(self.seconds)


@dataclass
class Case:
    """A set of flags on a model and a number of workers."""

    model: str
    workers: int
    flags: str
    told: float
    """Bytes that the rank that sends most sends for each update, by ``explain()``."""
    beside: float
    """The part of a step beside which they may travel."""
    exchanges: list[str]
    links: dict[str, Timed] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, str]:
        """What it is found by."""
        return self.model, self.workers, self.flags

    def limit(self, link: str) -> float:
        """Seconds below which no update can be on that link."""
        return limit(self.links["free"].median, self.told, link, self.beside)

    def reached(self, link: str) -> float:
        """The share of the limit that was reached: the median of the rounds.

        Each is held against the step without rate of its own round: hours of a machine differ.
        """
        pairs = zip(self.links["free"].seconds, self.links[link].seconds, strict=True)
        shares = [limit(free, self.told, link, self.beside) / took for free, took in pairs]
        return statistics.median(shares)


class Records:
    """A file of cases, in the order in which they were measured first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cases: dict[tuple[str, int, str], Case] = {}
        self.machine: dict[str, Any] = {}
        if path.exists():
            read = json.loads(path.read_text())
            self.machine = read["machine"]
            for row in read["cases"]:
                links = {link: Timed(**timed) for link, timed in row.pop("links").items()}
                self.keep(Case(**row, links=links))

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases.values())

    def __contains__(self, key: tuple[str, int, str]) -> bool:
        return key in self._cases

    def __getitem__(self, key: tuple[str, int, str]) -> Case:
        return self._cases[key]

    def keep(self, case: Case) -> None:
        """Put a case in the place of an older one."""
        self._cases[case.key] = case

    def save(self) -> None:
        """Write the file; whoever is stopped meanwhile leaves the old one."""
        written = {"machine": machine(), "cases": [_rounded(asdict(case)) for case in self]}
        replace_json(self.path, written, "cases")


def machine() -> dict[str, Any]:
    """Where this is measured."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def replace_json(path: Path, written: dict[str, Any], rows: str) -> None:
    """A file with one row to a line, so that changes of it can be read."""
    head = {key: value for key, value in written.items() if key != rows}
    lines = ",\n".join(f"  {json.dumps(row)}" for row in written[rows])
    text = f'{json.dumps(head)[:-1]}, "{rows}": [\n{lines}\n]}}\n'
    beside = path.with_suffix(".part")
    beside.write_text(text)
    beside.replace(path)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    for timed in row["links"].values():
        timed["seconds"] = [round(second, 6) for second in timed["seconds"]]
        timed["sent"], timed["busy"] = round(timed["sent"]), round(timed["busy"], 6)
    return row
