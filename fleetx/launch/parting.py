"""Why an exchange broke off: of workers that have ended, where no launcher of fleetx says so.

A script that ends with an error of torch's groups shows what became of the others below it.
"""

import os
import sys
from types import TracebackType

from fleetx import roles
from fleetx.launch.reporter import FILE, is_broken
from fleetx.roles import activity
from fleetx.roles.barrier import Barrier
from fleetx.roles.session import world

_ADVICE = (
    "All workers must make the same number of batches: deal the data out with "
    "fleet.distributed_loader(), which gives every worker as many, or end all loops after the "
    "smallest number. Nor may one of them alone make a call that exchanges something"
)


def explain() -> None:
    """Have it done from now on, in a job of several workers that has just begun."""
    barrier = world("init").barrier
    if barrier is not None and barrier.size > 1:
        roles.at_stop(Explained(barrier).forget)


class Explained:
    """What Python calls with an error that ends the script, as long as the job runs."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        self._before = sys.excepthook
        sys.excepthook = self

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Show the error with what is known of the others."""
        told = os.environ.get(FILE)  # to a launcher, which explains it
        if is_broken(error) and not told and (said := explanation(self._barrier)):
            error.add_note(said)
        self._before(kind, error, trace)

    def forget(self) -> None:
        """The job is over; whoever came between goes on calling us, and we say nothing more."""
        if sys.excepthook is self:
            sys.excepthook = self._before


def explanation(barrier: Barrier) -> str:
    """Who has ended while this worker goes on; nothing if nobody has."""
    ended = barrier.ended()
    if ended is None:
        told = [
            "worker 0, which keeps what workers say of themselves, is gone: it has ended, or was "
            "ended"
        ]
    else:
        told = [
            f"worker {index} has ended after {number} batch{'es' * (number != 1)}"
            for index, number in ended.items()
        ]
    if not told:
        return ""
    here = f"This is worker {barrier.index}, in batch {activity.batches()}"
    return f"fleetx: {', '.join(told)}. {here}. {_ADVICE}"
