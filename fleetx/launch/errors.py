"""What ends a launch early: a sentence for the user, or a signal from outside."""

import signal
from collections.abc import Callable
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
        self.number = signal.Signals(number)
        self.name = self.number.name
        self.code = 128 + number


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send before they end a job; its meaning is the script's, not ours."""


def raise_on_signals() -> None:
    """Turns Ctrl-C and friends into `Interrupted`, except those that `nohup` or `&` ignore."""
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    pass_on(lambda _number: None)  # nobody is there yet


def pass_on(send: Callable[[signal.Signals], None]) -> None:
    """Gives the signals of the script to whoever is responsible for its processes."""
    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda each, _frame: send(signal.Signals(each)))


def ask_before_stopping(leaves: Callable[[], bool]) -> None:
    """Lets SIGTERM end the launcher only if `leaves` says that nothing leaves by itself."""

    def stop(number: int, frame: FrameType | None) -> None:
        if not leaves():
            _interrupt(number, frame)

    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, stop)


def ignore_signals() -> None:
    """Lets nothing interrupt the stopping of workers, which is bounded in time anyway."""
    for number in STOPPING + PASSED_ON:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)
