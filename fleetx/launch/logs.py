"""Log files of the processes and the live echo of rank 0."""

import os
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from typing_extensions import override

from fleetx.launch.cluster import Process
from fleetx.launch.console import raw, terminal

ECHO_INTERVAL = 0.05
CRASH_LINES = 40
WIPE = b"\x1b[K"
"""Removes what is drawn to the right of a terminal's cursor: a progress bar, if there is one."""


class WorkerLogs(LogsSpecs):
    """Puts stdout of process i into `workerlog.N`; the runner joins stderr to it."""

    def __init__(self, folder: Path, errors: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder
        self._errors = errors
        self._attempt = 0
        self.processes: Sequence[Process] = ()

    @property
    @override
    def root_log_dir(self) -> str:
        return str(self._folder)

    def log(self, process: Process) -> Path:
        """Where a process writes."""
        return self._folder / process.log_name

    def error_file(self, process: Process) -> Path:
        """Where a process leaves its exception."""
        return self._errors / f"{process.log_name}.{self._attempt}.json"

    def activity_file(self, process: Process) -> Path:
        """Where a process tells what it does."""
        return self._errors / f"{process.log_name}.{self._attempt}.activity"

    def begin(self, processes: Sequence[Process], attempt: int) -> None:
        """Makes room for an attempt; the log of the one before is kept under its number."""
        self.processes, self._attempt = processes, attempt
        for process in processes:
            log = self.log(process)
            kept = log.with_name(f"{log.name}.attempt{attempt - 1}")
            if attempt == 0 or kept.exists():
                keep_earlier(log)
            elif log.exists():
                os.replace(log, kept)

    @override
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        destinations = LogsDest()
        for index, process in enumerate(self.processes):
            destinations.stdouts[index] = str(self.log(process))
            destinations.stderrs[index] = ""
            destinations.error_files[index] = str(self.error_file(process))
            envs[index]["TORCHELASTIC_ERROR_FILE"] = str(self.error_file(process))
        return destinations


def keep_earlier(log: Path) -> None:
    """Moves all that an earlier run wrote under this name into `earlier-N`, beside its others."""
    found = [path for path in (log, *log.parent.glob(f"{log.name}.*")) if path.is_file()]
    if not found:
        return
    names = {path.name for path in found}
    folders = (log.parent / f"earlier-{number}" for number in count(1))
    folder = next(each for each in folders if not any((each / name).exists() for name in names))
    folder.mkdir(exist_ok=True)
    for path in found:
        os.replace(path, folder / path.name)


class Echo:
    """Copies a growing file to stdout until told that it grows no more."""

    def __init__(self, path: Path) -> None:
        self._before = WIPE if terminal() else b""
        self._ended = threading.Event()
        self._file = path.open("rb", buffering=0)
        self._thread = threading.Thread(target=self._follow, name="echo", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Copies what is left and ends."""
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        with self._file:
            while not self._ended.is_set():
                self._copy()
                self._ended.wait(ECHO_INTERVAL)
            self._copy()

    def _copy(self) -> None:
        while data := self._file.read(1 << 16):
            raw(self._before + data)


def last_lines(path: Path, number: int = 20) -> tuple[str, ...]:
    """The end of a log, however large it is."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 16)))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ()
    return (*_reason(lines), *(_crash(lines) or lines[-number:]))


def _reason(lines: list[str]) -> list[str]:
    """What a library in native code said before it ended the process."""
    said = [line for line in lines if line.startswith(("terminate called", "  what():"))]
    return said[-2:]


def _crash(lines: list[str]) -> list[str]:
    """What `faulthandler` left of a crash in native code: its name, and the thread that had it."""
    began = [at for at, line in enumerate(lines) if line.startswith("Fatal Python error")]
    if not began:
        return []
    told = lines[began[-1] :]
    found = [at for at, line in enumerate(told) if line.startswith("Current thread")]
    if not found:
        return []
    thread = told[found[0] : found[0] + CRASH_LINES]
    end = next((at for at, line in enumerate(thread) if not line), len(thread))
    return [told[0], *thread[:end]]
