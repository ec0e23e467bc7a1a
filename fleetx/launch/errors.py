"""What ends a launch early: a sentence for the user, or a signal from outside."""

import signal
from types import FrameType

USAGE = 2
"""Exit code of everything that is wrong before the first process starts."""


class LaunchError(Exception):
    """One sentence for the user and the exit code that goes with it."""

    def __init__(self, sentence: str, code: int = USAGE) -> None:
        super().__init__(sentence)
        self.code = code


class Interrupted(BaseException):
    """The launcher was asked to stop; not an `Exception`, so that no library swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.code = 128 + number


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raise_on_signals() -> None:
    """Turns Ctrl-C and friends into `Interrupted`, except those that `nohup` or `&` ignore."""
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def ignore_signals() -> None:
    """Lets nothing interrupt the stopping of workers, which is bounded in time anyway."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)
