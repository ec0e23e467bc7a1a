"""Which samples of a batch are there only to make the shares of all workers equally long."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Filling:
    """What a batch was filled up with."""

    samples: int = 1
    """In the batch; 1 where the loader does not know what a batch consists of."""
    at: tuple[int, ...] = ()
    """The places of fillers among them."""

    def real(self, rows: int) -> Tensor | None:
        """The rows of results that belong to real samples; None for all of them.

        Each sample may have several rows, one behind the other, such as one for each word.
        """
        if not self.at or not rows:
            return None
        each, rest = divmod(rows, self.samples)
        if rest:
            raise ValueError(
                f"there are {rows} rows for a batch of {self.samples} samples, of which "
                f"{len(self.at)} only fill it up, so it is not known which rows are theirs"
            )
        kept = torch.ones(self.samples, dtype=torch.bool)
        kept[list(self.at)] = False
        return kept.repeat_interleave(each).nonzero().squeeze(1)


@dataclass(slots=True, eq=False)
class Pass:
    """One iteration over a loader."""

    filling: Filling
    """Of the batch that it gave last."""


_running: list[Pass] = []
"""Iterations that have begun and not ended; the one that gave the last batch is the last."""


@contextmanager
def running() -> Iterator[Pass]:
    """Be known as long as the iteration lasts."""
    here = Pass(Filling())
    _running.append(here)
    try:
        yield here
    finally:
        _running.remove(here)


def gives(here: Pass, filling: Filling) -> None:
    """Note what fills the batch that is given now."""
    here.filling = filling
    _running.remove(here)
    _running.append(here)


def current() -> Filling:
    """What fills the batch that was given last by a loader that is still being iterated over."""
    return _running[-1].filling if _running else Filling()


def without(tensors: Iterable[Tensor], filling: Filling) -> list[Tensor]:
    """The rows of real samples."""
    found = []
    for tensor in tensors:
        kept = filling.real(len(tensor))
        found.append(tensor if kept is None else tensor[kept.to(tensor.device)])
    return found
