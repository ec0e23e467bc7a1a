"""Which process failed first, with what, and how it is told."""

import json
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fleetx.launch.cluster import Process

OVERDUE = 3.0
"""Seconds a process may take to end after its script has failed."""

OUT_OF_MEMORY = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))
"""Where the system counts what it has killed for its memory."""


_OTHER_SIZE = "Received data size doesn't match expected size"
"""What gloo says before it ends a process."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The end of one process that ends the job."""

    title: str
    node: str
    exit_code: int
    """As a shell counts: 128 + signal for a process that was killed."""
    time: float
    message: str
    log: str = ""
    lines: tuple[str, ...] = ()
    verb: str = "failed first"
    others: str = ""
    """What the other ranks were doing."""

    def to_json(self) -> str:
        """For another launcher to read."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Failure":
        """The inverse of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        return Failure(**values | {"lines": tuple(values["lines"])})

    def headline(self) -> str:
        """One line: who, how, when, why."""
        clock = datetime.fromtimestamp(self.time).strftime("%H:%M:%S.%f")[:-3]
        return f"{self.title} {self.verb} (exit code {self.exit_code}) at {clock}: {self.message}"

    def report(self, own_node: str, *, several: bool) -> str:
        """What the user sees at the end of a failed job."""
        there = f" on {self.node} {self.verb}"
        parts = [self.headline().replace(f" {self.verb}", there, 1)]
        if not several:
            parts = [self.headline()]
        if self.others:
            parts.append(f"meanwhile {self.others}")
        if self.lines:
            parts += [f"last lines of {self.log}:", *(f"    {line}" for line in self.lines)]
        elif self.log:
            parts.append(f"its log {self.log} is empty")
        if self.log and several and self.node != own_node:
            parts.append(f"the log is on {self.node}")
        return "\n".join(parts)


def first(failures: Sequence[Failure]) -> Failure:
    """The earliest failure; what follows within milliseconds is usually its echo."""
    return min(failures, key=lambda failure: failure.time)


@dataclass(frozen=True)
class Record:
    """How one process ended."""

    time: float
    exit_code: int
    message: str


class Watch:
    """Looks at processes again and again and remembers in which order they ended."""

    def __init__(self, processes: Sequence[Process], error_files: Sequence[Path]) -> None:
        self._processes = processes
        self._error_files = error_files
        self._seen = time.time()
        self._out_of_memory = out_of_memory()
        self._ended: dict[int, tuple[float, int]] = {}

    def look(self, codes: Mapping[int, int | None]) -> tuple[Process, Record] | None:
        """The first failure among the processes, given their exit codes so far."""
        for index, code in codes.items():
            if code is not None and index not in self._ended:
                # A process without an error file was alive at the last look, hence that time:
                # it is then never later than an exception that its death caused elsewhere.
                self._ended[index] = (self._seen, code)
        self._seen = time.time()
        failed = [index for index, (_, code) in self._ended.items() if code != 0]
        if not failed and not self._overdue(codes):
            return None
        records = {index: self._record(index) for index in codes}
        found = {index: record for index, record in records.items() if record is not None}
        index = min(found, key=lambda key: found[key].time)
        return self._processes[index], found[index]

    def finished(self, role: str) -> int:
        """How many processes of a role have ended well."""
        return sum(
            self._processes[index].role == role and code == 0
            for index, (_, code) in self._ended.items()
        )

    def _overdue(self, codes: Mapping[int, int | None]) -> bool:
        """A script failed, but its process hangs, for instance in a thread of its own."""
        for index, code in codes.items():
            record = _read(self._error_files[index]) if code is None else None
            if record is not None and time.time() - record.time > OVERDUE:
                return True
        return False

    def _record(self, index: int) -> Record | None:
        when, code = self._ended.get(index, (0.0, 0))
        written = _read(self._error_files[index])
        if written is not None and (index not in self._ended or code != 0):
            return written if code <= 0 else Record(written.time, code, written.message)
        if code == 0:
            return None
        if code < 0:
            return Record(when, 128 - code, f"killed by {signal_name(-code)}{self._why(-code)}")
        return Record(when, code, "ended without a Python exception")

    def _why(self, number: int) -> str:
        if number == signal.SIGKILL and out_of_memory() > self._out_of_memory:
            return ", by the system: its memory ran out"
        return ""


def meaning(lines: Sequence[str]) -> str:
    """What a crash means whose reason is in these lines of a log; nothing for most of them."""
    if any(_OTHER_SIZE in line for line in lines):
        return (
            ", because ranks sent each other tensors of different sizes: under sharding, pipeline "
            "and tensor_parallel all ranks must call the same parts of the model in the same order"
        )
    return ""


def out_of_memory() -> int:
    """How many processes the system has killed for their memory, as far as it tells."""
    for file in OUT_OF_MEMORY:
        with suppress(OSError, ValueError):
            counts = dict(line.split() for line in file.read_text().splitlines())
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return 0


def _read(path: Path) -> Record | None:
    try:
        message = json.loads(path.read_text(encoding="utf-8"))["message"]
        extra = message["extraInfo"]
        at = float(extra.get("time", extra["timestamp"]))
        return Record(at, int(extra.get("exit_code", 1)), str(message["message"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def signal_name(number: int) -> str:
    """The name of a signal, as `kill -l` prints it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
