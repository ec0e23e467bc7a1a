"""Which entries of an epoch's order belong to which worker: pure arithmetic."""

import itertools
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Uneven = Literal["mark", "pad", "drop"]
UNEVEN: tuple[str, ...] = get_args(Uneven)


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The part of worker `rank` of `size`.

    Entry i of the order goes to worker i % size. So the i-th batches of all workers together are
    the i-th batch of one process whose batch is `size` times as large.
    """

    rank: int
    size: int
    batch_size: int = 1
    """Entries in one batch of one worker."""

    uneven: Uneven = "mark"
    """Repeat the first entries, or leave out the last, where `size` does not divide the order."""

    drop_last: bool = False
    """Leave out an incomplete batch of all workers together."""

    merged: int = 1
    """Batches that stand for one of a larger number of workers, and must stay together."""

    @property
    def step(self) -> int:
        """Entries that all workers together take per batch."""
        return self.batch_size * self.size

    def kept(self, count: int) -> int:
        """How many of `count` entries are given out; above `count` where some are repeated."""
        if self.drop_last:
            return count - count % (self.step * self.merged)
        unit = self.size * self.merged
        if self.uneven == "drop":
            return count - count % unit
        return count + -count % unit

    def positions(self, count: int, given: int = 0) -> Tensor:
        """The positions in the order that this worker takes, after `given` were given out.

        The rest is dealt anew, so an epoch may go on with another number of workers.
        """
        given = min(given, count)
        everyone = given + torch.arange(self.kept(count - given))
        return everyone[self.rank :: self.size] % max(count, 1)

    def is_filler(self, count: int, given: int = 0) -> Tensor:
        """Of each of these positions, whether its entry was given to another worker already."""
        given = min(given, count)
        everyone = given + torch.arange(self.kept(count - given))
        marked = everyone >= count if self.uneven == "mark" else torch.zeros_like(everyone) > 0
        return marked[self.rank :: self.size]

    def num_batches(self, count: int) -> int:
        """The batches of one worker, the same for all."""
        whole, rest = divmod(self.kept(count), self.step * self.merged)
        return self.merged * (whole + bool(rest))

    def cuts(self, count: int) -> list[range]:
        """Where batches lie in the `count` entries of this worker.

        What is left for the last ones is dealt to as many as stand for one, so that they make an
        update together.
        """
        size, together = self.batch_size, self.batch_size * self.merged
        whole = count - count % together
        found = [range(start, start + size) for start in range(0, whole, size)]
        bounds = [whole + (count - whole) * at // self.merged for at in range(self.merged + 1)]
        return found + [range(a, b) for a, b in itertools.pairwise(bounds) if a < b]

    def remark(self, count: int, noun: str) -> str:
        """What is repeated or left out, in a sentence; empty where the order divides evenly."""
        extra = self.kept(count) - count
        if not extra:
            return ""
        number = abs(extra)
        verb = "repeated" if extra > 0 else "left out"
        be = "is" if number == 1 else "are"
        total, part = _counted(count, noun), _counted(number, noun)
        return f"{total} on {self.size} workers: {part} {be} {verb} in every epoch"


def _counted(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending}"
