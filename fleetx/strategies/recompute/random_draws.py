"""Random numbers of a piece of work that is replayed: the same ones once more."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fleetx.graph.recording import recording

States = list[Tensor]
"""What each generator held: that of the host, and that of the device if it is another one."""


class Draws:
    """Looks at the generators around each run of a piece of work.

    torch would keep and restore them in any case; most layers draw nothing, and asking costs less.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()  # there are no generators before
            self._generators.append(torch.cuda.default_generators[_index(device)])
        self.on_device = False
        """Whether numbers were ever drawn on a GPU, which shows only while nothing is recorded."""

    def before(self) -> States | None:
        """Where the generators are; None while work is recorded, when nobody may ask."""
        if recording(self._device):
            return None
        return [generator.get_state() for generator in self._generators]

    def drawn(self, before: States | None) -> States | None:
        """What the replay needs, after the work was done: None when nothing was drawn."""
        if before is None:
            return None
        pairs = zip(before, self._generators, strict=True)
        moved = [not torch.equal(state, generator.get_state()) for state, generator in pairs]
        self.on_device = self.on_device or moved[1:] == [True]
        return before if any(moved) else None

    @contextmanager
    def again(self, states: States) -> Iterator[None]:
        """Draw the same numbers inside, and go on outside as if nothing had been drawn."""
        held = [generator.get_state() for generator in self._generators]
        self._put(states)
        try:
            yield
        finally:
            self._put(held)

    def _put(self, states: States) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def _index(device: torch.device) -> int:
    with torch.cuda.device(device):
        return torch.cuda.current_device()
