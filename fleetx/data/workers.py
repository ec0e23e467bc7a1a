"""The `DataLoader` behind a worker's share: the user's settings, other indices, another seed."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from fleetx.data.team import Team

_SETTINGS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)


def settings_of(loader: DataLoader[Any], team: Team) -> dict[str, Any]:
    """The arguments that make a loader like `loader`, short of where its indices come from."""
    settings = {name: getattr(loader, name) for name in _SETTINGS}
    if loader.pin_memory_device:
        settings["pin_memory_device"] = loader.pin_memory_device
    # From this generator a loader draws the seed of its workers.
    settings["generator"] = loader.generator if team.size == 1 else torch.Generator()
    return settings


@contextlib.contextmanager
def draws_undone(generator: torch.Generator | None) -> Iterator[None]:
    """Leave the generator as it was.

    An epoch that is resumed was paid for when it began; a second draw would change the epochs
    after it.
    """
    source = generator or torch.default_generator
    state = source.get_state()
    try:
        yield
    finally:
        source.set_state(state)


class WorkerSeed:
    """Seeds the processes of `inner` for each epoch, the same or another on every rank.

    A single worker's loader draws this seed itself. With more workers we draw it in its place,
    from the same generator at the same moment, so that the orders drawn later are the same for
    any number of workers.
    """

    def __init__(
        self, inner: DataLoader[Any], loader: DataLoader[Any], team: Team, *, alike: bool
    ) -> None:
        self._inner, self._loader, self._team, self._alike = inner, loader, team, alike
        self._is_drawn = False

    def draw(self, epoch: int) -> None:
        """Call it before every iteration over `inner`."""
        is_kept = self._is_drawn and self._loader.persistent_workers
        if self._team.size == 1 or is_kept:  # torch draws none for processes that stay
            return
        self._is_drawn = True
        mine = torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        seed = int(self._team.hear_first(mine)) if self._team.group else epoch
        own = 0 if self._alike else self._team.rank
        self._inner.generator.manual_seed((seed + own) % 2**63)
