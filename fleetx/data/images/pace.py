"""Whether a process that reads images has time to decode them, before the trainer needs them."""

import torch
from torch.utils.data import get_worker_info

from fleetx.data.ahead import DEPTH

_IN_TIME = DEPTH + 2
"""Batches before its own at which a process must hurry: the card decodes the next ones already."""


class Pace:
    """How many batches the trainer was given, for all processes that read for it."""

    def __init__(self) -> None:
        self._numbers = torch.zeros(2, dtype=torch.int64).share_memory_()

    def begin(self) -> None:
        """An iteration begins."""
        self._numbers[1] = 0
        self._numbers[0] += 1

    def give(self) -> None:
        """The trainer was given a batch."""
        self._numbers[1] += 1

    @property
    def iteration(self) -> int:
        """Another number for each iteration."""
        return int(self._numbers[0])

    @property
    def given(self) -> int:
        """Batches, in this iteration."""
        return int(self._numbers[1])


class Turn:
    """The place of this process's batch among those that the trainer waits for.

    Processes of a loader take batches in turn, so each knows when its own is needed. One that has
    time decodes images itself; if it is late, it leaves the rest to the card. So the cores do what
    they can, however many there are, and nobody waits for them.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace, self._iteration, self._batches = pace, -1, 0
        self._place = 0

    def next_batch(self) -> None:
        """This process begins another batch."""
        if (iteration := self._pace.iteration) != self._iteration:
            self._iteration, self._batches = iteration, 0
        info = get_worker_info()
        # Who trains has no time.
        self._place = self._batches * info.num_workers + info.id if info is not None else 0
        self._batches += 1

    def has_time(self) -> bool:
        """Whether the batch is needed only later."""
        return self._place - self._pace.given > _IN_TIME
