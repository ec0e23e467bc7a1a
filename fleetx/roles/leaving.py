"""A process that is told to stop: it takes note, and leaves with the others at a moment of theirs.

Schedulers send SIGTERM some time before they take a machine away. A script that can go on later
uses that time: whoever saves for it asks here whether it was told.
"""

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from fleetx.roles import activity
from fleetx.roles.environment import Environment

ASKS_FOR_RESTART = 75
"""Exit code of a process that wants to be started again: EX_TEMPFAIL of sysexits.h."""
SECONDS = "FLEETX_CHECKPOINT_SECONDS"
"""How often whoever started the job wants it to be saved."""
OVER = ".over"
"""Behind the name of the file in which a process tells what it does: its job is over already."""
_ACTIVITY = "FLEETX_ACTIVITY"


class Left(SystemExit):
    """The end of a process that was told to stop, and has saved what it takes to go on."""

    def __init__(self, sentence: str) -> None:
        super().__init__(ASKS_FOR_RESTART)
        self.sentence = sentence


class _Notice:
    """What this process was told, while somebody heeds it."""

    def __init__(self) -> None:
        self.told = ""
        self._before: Any = None
        self._heeded = self._survives_forks = False

    def heed(self) -> None:
        """From now on SIGTERM is noted, and ends nothing by itself."""
        if self._heeded or threading.current_thread() is not threading.main_thread():
            return  # Python delivers signals to the main thread alone, which may set handlers
        self._heeded, self.told = True, ""
        self._before = signal.signal(signal.SIGTERM, self._note)
        activity.will_leave(True)
        if not self._survives_forks:
            self._survives_forks = True
            os.register_at_fork(after_in_child=self._in_child)

    def forget(self) -> None:
        """SIGTERM is again what it was before."""
        if self._heeded and threading.current_thread() is threading.main_thread():
            self._heeded = False
            activity.will_leave(False)
            if signal.getsignal(signal.SIGTERM) == self._note:
                signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not _is_over():
            self.told = signal.Signals(number).name
            return
        self.forget()  # the launcher ends what a failure has left: nobody would come to a meeting
        if callable(self._before):
            self._before(number, frame)
        elif self._before is signal.SIG_DFL:
            os.kill(os.getpid(), number)

    def _in_child(self) -> None:
        """A child of this process, such as one that reads data, ends as its parent expects."""
        if self._heeded:
            self._heeded = False
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


notice = _Notice()
"""Of this process, which takes part in one job at a time."""


def _is_over() -> bool:
    file = os.environ.get(_ACTIVITY)
    return bool(file) and Path(f"{file}{OVER}").exists()


def is_restart() -> bool:
    """Whether a launcher has started this job before, and starts it again."""
    names = ("PADDLE_RESTART", "TORCHELASTIC_RESTART_COUNT")
    return Environment(os.environ).first_number(*names, default=0) > 0


def wanted_seconds() -> float | None:
    """The seconds between two checkpoints that whoever started the job has asked for, if any."""
    text = Environment(os.environ).text(SECONDS)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ValueError(f"{SECONDS}={text!r} is not a number of seconds; set it to one above 0")
    return seconds
