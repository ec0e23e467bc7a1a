"""Watching what workers tell of themselves: names a rank that stands still, and ends the job."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetx.launch.cluster import Process, World
from fleetx.launch.console import warn
from fleetx.launch.errors import LaunchError
from fleetx.launch.out_of_step import different_updates
from fleetx.launch.reporter import AFTER, ASK, FILE, TELL
from fleetx.launch.seen import Seen, Verdict, from_json, to_json
from fleetx.launch.standstill import ended_early, judge, meanwhile, stacks

if TYPE_CHECKING:
    from fleetx.launch.job_board import JobBoard

CODE = 124
"""Exit code of a job that was ended because it stood still, as `timeout` has it."""
WARNING = "FLEETX_STUCK_WARNING"
DEFAULT_WARNING = 25.0
"""Seconds of waiting after which a rank is named; told within thirty."""
LOOK = 0.5
SHARE = 2.0
"""Seconds between two messages to the launcher that judges, while a worker stands still."""
SILENCE = 5.0
"""Seconds without a word that a busy machine may take."""
LEAST = 3.0
"""Seconds without progress after which a worker tells more of itself, at the most."""
SETTLE = 2.0
"""Seconds in which the others of a failed rank may say what they were doing."""
_STATES = {"T": "it is stopped", "t": "it is being traced", "D": "it waits for a disk or a device"}


@dataclass(frozen=True)
class Limits:
    """After how many seconds of waiting a rank is named, and the job ended, if at all."""

    warn: float = DEFAULT_WARNING
    end: float | None = None

    @staticmethod
    def of(stuck_after: float | None, environ: Mapping[str, str]) -> "Limits":
        """What was asked for by flag or variables; a warning after 0 s is none."""
        warning = _seconds(environ, WARNING)
        end = stuck_after or _seconds(environ, "FLEETX_TIMEOUT")
        return Limits(DEFAULT_WARNING if warning is None else warning or float("inf"), end)

    @property
    def first(self) -> float:
        """When something is said or done for the first time."""
        return min(self.warn, self.end or self.warn)

    def variables(self, file: Path) -> dict[str, str]:
        """What a worker must know."""
        return {FILE: str(file), AFTER: f"{min(LEAST, self.first / 3):g}"}


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        raise LaunchError(
            f"{name}={text!r} is not a number of seconds; set it to one, such as 30"
        ) from None


class StuckWatch:
    """Looks at the workers of one attempt, all machines together."""

    def __init__(
        self, world: World, files: Sequence[Path], board: "JobBoard", attempt: int, limits: Limits
    ) -> None:
        self._world, self._board, self._attempt, self._limits = world, board, attempt, limits
        pairs = zip(world.local, files, strict=True)
        self._files = {each.rank: file for each, file in pairs if each.role == "TRAINER"}
        self._looked = self._shared = 0.0
        self._shared_any = False
        self._heard = 0
        self._told: Verdict | None = None
        self.found: Verdict | None = None
        """Who keeps others waiting at the moment."""
        self._next = limits.warn
        self._asked: set[int] = set()
        self._warned: set[tuple[int, str]] = set()

    def look(self) -> Verdict | None:
        """Say who stands still; a verdict if the job shall end because of it."""
        now = time.monotonic()
        if now - self._looked < LOOK or len(self._world.workers) < 2:
            return None
        self._looked = now
        local = self._local(now)
        self._pass_on(local)
        if self._world.nnodes == 1:
            return self._judge(local)
        self._share(local, now)
        if self._world.node_rank == 0:
            return self._judge(self._everywhere(local))
        self._repeat()
        return None

    def look_back(self) -> None:
        """Say what was wrong with a job whose workers have all ended well."""
        self._relieve("has ended")  # it may have, between two looks
        local = self._local(time.monotonic())
        self._pass_on(local)
        if self._world.node_rank == 0 and (found := different_updates(self._everywhere(local))):
            self._say(found)

    def blame(self, process: Process) -> Verdict | None:
        """Who is behind the failure of a process whose partners are gone or out of order."""
        if process.role != "TRAINER" or process.rank not in self._files:
            return None
        deadline = time.monotonic() + SETTLE
        while time.monotonic() < deadline:
            seen = self._everywhere(self._local(time.monotonic()))
            failed = seen.get(process.rank)
            if failed is None or failed.state != "failed":
                return None  # it was killed, or failed outside of its script
            if (found := ended_early(seen, process.rank)) is not None:
                return found
            if not failed.broken:
                return None
            time.sleep(LOOK / 2)
        return None

    def meanwhile(self, process: Process) -> str:
        """What the other ranks do while a process fails, before they are told to stop."""
        failed = process.rank if process.role == "TRAINER" else None
        others = {rank: file for rank, file in self._files.items() if rank != failed}
        for file in others.values():
            with suppress(OSError):
                Path(f"{file}{ASK}").touch()
        deadline = time.monotonic() + SETTLE
        while not all(map(_has_told, others.values())) and time.monotonic() < deadline:
            time.sleep(LOOK / 10)
        seen = self._everywhere(self._local(time.monotonic()))
        return meanwhile({rank: each for rank, each in seen.items() if rank != failed})

    def _local(self, now: float) -> dict[int, Seen]:
        found = {rank: self._read(rank, file, now) for rank, file in self._files.items()}
        return {rank: seen for rank, seen in found.items() if seen is not None}

    def _pass_on(self, local: Mapping[int, Seen]) -> None:
        """Say what workers of this machine want said; the log of worker 0 is shown anyway."""
        for rank, seen in local.items():
            if rank and seen.warning and (rank, seen.warning) not in self._warned:
                self._warned.add((rank, seen.warning))
                warn(f"rank {rank} says: {seen.warning}")

    def _read(self, rank: int, file: Path, now: float) -> Seen | None:
        try:
            told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            seen = Seen.of(told, now)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # it has not begun
        if seen.state != "running" or seen.silent < max(SILENCE, self._limits.first):
            return replace(seen, silent=0.0)
        return self._silent(rank, file, int(told["pid"]), seen)

    def _silent(self, rank: int, file: Path, pid: int, seen: Seen) -> Seen:
        """Ask a process whose threads say nothing by a signal, which it answers if it runs."""
        state = _state(pid)
        if rank not in self._asked and state in "RSD":
            self._asked.add(rank)
            os.kill(pid, TELL)
            time.sleep(0.1)
        try:
            lines = Path(f"{file}.stacks").read_text(encoding="utf-8", errors="replace")
        except OSError:
            lines = ""
        asleep = _STATES.get(state, "native code does not let go of the interpreter")
        return replace(seen, asleep=asleep, stack=tuple(lines.splitlines()[:60]))

    def _share(self, local: Mapping[int, Seen], now: float) -> None:
        half = self._limits.first / 2
        stands = [seen for seen in local.values() if seen.state != "running" or seen.still > half]
        if now - self._shared < min(SHARE, half) or not (stands or self._shared_any):
            return
        self._shared, self._shared_any = now, bool(stands)
        self._board.tell_activity(self._attempt, self._world.node_rank, to_json(local))

    def _everywhere(self, local: Mapping[int, Seen]) -> dict[int, Seen]:
        every: dict[int, Seen] = {}
        if self._world.nnodes > 1:
            for text in self._board.activities(self._attempt, self._world.nnodes):
                every |= from_json(text)
        return {**every, **local}

    def _judge(self, seen: Mapping[int, Seen]) -> Verdict | None:
        self.found = found = judge(seen, self._limits.first)
        if found is None:
            self._relieve("goes on")
            return None
        if self._limits.end is not None and found.seconds >= self._limits.end:
            self._say(f"{found.sentence}\n{stacks(seen)}")
            return found
        if self._told is None or found.culprits != self._told.culprits:
            self._next = self._limits.warn
        if found.seconds >= self._next:
            self._say(f"{found.sentence}\n{stacks(seen)}")
            self._told, self._next = found, 2 * found.seconds
        return None

    def _relieve(self, now: str) -> None:
        if self._told is not None:
            self._say(f"the wait for {_ranks(self._told)} is over; the job {now}")
        self._told, self._next = None, self._limits.warn
        self._asked.clear()

    def _say(self, text: str) -> None:
        warn(text)
        if self._world.nnodes > 1:
            self._board.announce(self._attempt, text)

    def hear(self) -> None:
        """Print what was announced last, on a machine that does not judge."""
        if self._world.node_rank > 0:
            self._repeat()

    def _repeat(self) -> None:
        for text in self._board.announcements(self._attempt, self._heard):
            warn(text)
            self._heard += 1


def _ranks(found: Verdict) -> str:
    return f"rank{'s' * (len(found.culprits) != 1)} {', '.join(map(str, found.culprits))}"


def _has_told(file: Path) -> bool:
    """Whether a worker has answered, or will not."""
    try:
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # it has not begun
    return bool(told.get("asked")) or told["state"] != "running" or _state(told["pid"]) in "ZX?"


def _state(pid: int) -> str:
    """One letter of proc(5), where there is one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "?"
