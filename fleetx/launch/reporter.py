"""What a worker tells its launcher twice a second, from a thread: what it does, and since when.

The runner loads this file by path, before the script: it imports nothing of fleetx or torch, and
looks at what the script has imported meanwhile.
"""

import contextlib
import faulthandler
import json
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

FILE, AFTER = "FLEETX_ACTIVITY", "FLEETX_ACTIVITY_AFTER"
"""Where the launcher reads, and after how many seconds without progress it wants to know more."""
BEAT = 0.5
LOOK = 10.0
"""Seconds between two looks at the record of collectives while nothing goes on."""
BEGUN = 10
"""Exchanges after which a script without batches of fleetx is through with its beginning."""
RECENT = 8
"""Collectives of each group that are told of, the latest ones."""
LOOKS = 60
"""Of so many looks, half a minute, it is told how many found the process in an exchange."""
DEEPEST = 60
"""Frames of a stack that are told of, the innermost ones."""
ASK = ".ask"
"""What a file beside the one of a worker is called that makes it tell everything at once."""
TELL = signal.SIGRTMAX - 2
"""Makes a process write its stacks even if its interpreter is stuck in native code."""

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_STRATEGIES = f"{_PACKAGE}strategies{os.sep}"
_LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_C10D = f"torch{os.sep}distributed{os.sep}"
_WAITING = (
    f"{_C10D}distributed_c10d.py",
    f"{_C10D}c10d_logger.py",
    f"{_C10D}rendezvous.py",
    f"{_C10D}_functional_collectives.py",
    f"{_C10D}pipelining{os.sep}schedules.py",
    f"{_PACKAGE}comm{os.sep}pairwise.py",
    f"{_PACKAGE}roles{os.sep}barrier.py",
    f"{_PACKAGE}roles{os.sep}stores.py",
)
"""Files whose innermost call is a wait for other ranks."""
_EXCHANGING = (*_WAITING, f"{_PACKAGE}ps{os.sep}wire{os.sep}")
"""The same, and those in which a worker waits for servers."""
_MESSENGERS = (
    _C10D,
    *(f"{_PACKAGE}{room}{os.sep}" for room in ("comm", "roles", "plan")),
)
_QUIET = {
    *("wrapper", "wait", "_wait", "__exit__", "<listcomp>"),
    *("_exchange", "gather_two", "sum_rows"),
}
"""Functions around an exchange whose names say nothing of it."""

_PAGE, _PAGES = (os.sysconf(name) for name in ("SC_PAGE_SIZE", "SC_PHYS_PAGES"))
_PHYSICAL = _PAGE * _PAGES
"""Bytes of memory of this machine."""
_BROKEN = ("gloo", "NCCL", "c10d", "onnection", "ecv")

Place = tuple[str, int, str]
"""File, line and function."""


class Reporter:
    """Looks at this process and writes what it sees into one small file."""

    def __init__(self, file: str, after: float) -> None:
        self._file, self._after = file, after
        self._seen: object = None
        self._still = time.monotonic()
        self._groups: dict[str, Any] = {}
        self._looked = 0.0
        self._figures: dict[str, Any] = {}
        self._exchanging: deque[bool] = deque(maxlen=LOOKS)
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleetx-activity", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            # Kept open for as long as the process lives: the handler writes to its number.
            stacks = open(f"{self._file}.stacks", "wb", buffering=0)  # noqa: SIM115
            faulthandler.register(TELL, file=stacks, all_threads=True)
        self._thread.start()

    def finish(self) -> None:
        """The script is through; called last of all at exit."""
        if os.getpid() == self._pid and not self._ended.is_set():
            self._stop()
            self._write({**self._light(), "state": "ended", "groups": self._collectives()})

    def fail(self, error: BaseException) -> None:
        """The script has failed with this."""
        if os.getpid() == self._pid and not self._ended.is_set():
            self._stop()
            places, groups = list(_of_traceback(error.__traceback__)), self._collectives()
            for group in groups.values():
                # What broke is no longer under way, but nothing came after it.
                group["open"] = group["made"]
            told = {**self._light(), **_located(places), "groups": groups}
            self._write({**told, "state": "failed", "broken": is_broken(error)})

    def _stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(2 * BEAT)

    def _run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(Exception):  # telling must never end a job
                self.beat()
            self._ended.wait(BEAT)

    def beat(self) -> None:
        """Look once and tell."""
        self._figures = self._counted()
        record = self._light()
        at = time.monotonic()
        if (seen := self._progress(record)) != self._seen:
            self._seen, self._still, self._looked = seen, at, 0.0
        asked = os.path.exists(self._file + ASK)
        if asked or at - self._still >= self._after:
            if asked or not self._looked or at - self._looked > LOOK:
                self._groups, self._looked = self._collectives(), at
            record |= {**_located(_of_main_thread()), "groups": self._groups, "asked": asked}
        self._write(record)

    def _light(self) -> dict[str, Any]:
        activity = sys.modules.get("fleetx.roles.activity")
        known = activity.now() if activity is not None else {}
        told = {"state": "running", "pid": self._pid, **known, "figures": self._figures}
        if (figures := sys.modules.get("fleetx.roles.figures")) is not None:
            told["facts"] = figures.facts()
        return told

    def _counted(self) -> dict[str, Any]:
        """What can be told in numbers: what anybody put down, and what any process has."""
        self._exchanging.append(_exchanges())
        share = sum(self._exchanging) / len(self._exchanging)
        own = {"memory": resident_bytes(), "memory_total": _PHYSICAL, "exchanging": round(share, 3)}
        figures = sys.modules.get("fleetx.roles.figures")
        return own if figures is None else {**own, **figures.now()}

    def _progress(self, record: dict[str, Any]) -> object:
        names = ("doing", "since", "batches", "meetings")
        made = _made()
        seen = [record.get(name) for name in names], made
        begun = record["batches"] > 1 if "batches" in record else sum(made.values()) > BEGUN
        # Imports and compilers take their time before anything of a job repeats itself: as long as
        # the stack changes, a process that starts does not stand still.
        return seen if begun else (seen, _of_main_thread())

    def _collectives(self) -> dict[str, Any]:
        internals = _internals()
        if internals is None:
            return {}
        found = {
            name: {"called": called, "ranks": ranks, "made": 0, "open": 0, "recent": []}
            for name, (called, ranks) in internals.group_members().items()
        }
        for entry in internals.last_collectives():
            group = found.get(str(entry["process_group"][0]))
            if group is None or entry.get("is_p2p"):
                continue
            number = int(entry["collective_seq_id"])
            group["made"] = max(group["made"], number)
            if not entry["retired"]:
                group["open"] = group["open"] or number
            kind = str(entry["profiling_name"]).rpartition(":")[2]
            group["recent"].append([number, kind, entry["input_sizes"]])
        for name, total in internals.exchanges_made().items():
            if name in found:
                found[name]["pairs"] = total - found[name]["made"]
                found[name]["recent"] = found[name]["recent"][-RECENT:]
        return found

    def _write(self, record: dict[str, Any]) -> None:
        at = time.monotonic()
        text = json.dumps({**record, "written": at, "still": self._still})
        partial = f"{self._file}.partial"
        with contextlib.suppress(OSError):
            Path(partial).write_text(text, encoding="utf-8")
            os.replace(partial, self._file)


def is_broken(error: BaseException) -> bool:
    """Whether it may be an exchange that did not work out, which others may be the reason of."""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _BROKEN)


def _internals() -> Any:
    """What knows torch's process groups, once the script has made one."""
    torch = sys.modules.get("torch.distributed")
    if torch is None or not getattr(torch, "is_initialized", lambda: False)():
        return None
    try:
        from fleetx import torch_internals
    except ImportError:  # fleetx is not on the path of this script
        return None
    return torch_internals


def _made() -> dict[str, int]:
    internals = _internals()
    return {} if internals is None else dict(internals.exchanges_made())


def _exchanges() -> bool:
    """Whether the main thread is in a call that exchanges something with others."""
    ident = threading.main_thread().ident
    frame = sys._current_frames().get(ident) if ident is not None else None
    return frame is not None and any(part in frame.f_code.co_filename for part in _EXCHANGING)


def resident_bytes() -> int:
    """Bytes of memory that this process has; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


def _of_main_thread() -> list[Place]:
    """The stack of the main thread, the innermost frame first."""
    ident = threading.main_thread().ident
    frame = sys._current_frames().get(ident) if ident is not None else None
    return list(_of_frames(frame))


def _of_frames(frame: FrameType | None) -> Iterator[Place]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back


def _of_traceback(trace: TracebackType | None) -> Iterator[Place]:
    summary = traceback.extract_tb(trace)
    yield from ((each.filename, each.lineno or 0, each.name) for each in reversed(summary))


def _located(places: list[Place]) -> dict[str, Any]:
    """Where the innermost line of the script is, in what it waits, and the whole stack."""
    script = [place for place in places if _is_script(place[0])]
    shown = [place for place in places if not _is_runner(place[0])]
    file, line, _ = (script or places or [("", 0, "")])[0]
    return {
        "place": f"{os.path.basename(file)}:{line}" if file else "",
        "waits": _waits(places),
        "strategy": _strategy(place[0] for place in places),
        "stack": [f"{file}:{line} in {name}" for file, line, name in shown[:DEEPEST]],
    }


def _is_script(file: str) -> bool:
    return not file.startswith(("<", _PACKAGE, *_LIBRARIES))


def _is_runner(file: str) -> bool:
    return file.startswith(("<frozen", f"{_PACKAGE}launch{os.sep}")) or "runpy" in file


def _waits(places: list[Place]) -> str:
    """The function that exchanges something with other ranks, if that is where it stands."""
    if not places or not any(part in places[0][0] for part in _WAITING):
        return ""
    names = [name for file, _, name in places if any(part in file for part in _WAITING)]
    return next((name for name in names if name not in _QUIET), names[0])


def _strategy(files: Iterable[str]) -> str:
    """The strategy that has called an exchange itself, without anything of others in between."""
    caller = next((file for file in files if not any(part in file for part in _MESSENGERS)), "")
    if not caller.startswith(_STRATEGIES):
        return ""
    return caller.removeprefix(_STRATEGIES).split(os.sep)[0].removesuffix(".py")


def start() -> Reporter | None:
    """Tell the launcher that asked for it; None where nobody did."""
    file = os.environ.get(FILE)
    if not file:
        return None
    reporter = Reporter(file, float(os.environ.get(AFTER) or 3.0))
    reporter.start()
    return reporter
