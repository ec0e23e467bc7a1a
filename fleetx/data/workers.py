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


def seed_workers(
    inner: DataLoader[Any], loader: DataLoader[Any], team: Team, *, alike: bool, epoch: int
) -> None:
    """Seed the workers of `inner` for one epoch, the same or another on every rank.

    A single process draws this seed itself, at the same moment and from the same generator, so
    that what follows in the generator is the same for any number of workers.
    """
    if team.size == 1:
        return
    mine = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    seed = int(team.hear_first(mine)) if team.group else epoch
    inner.generator.manual_seed((seed + (0 if alike else team.rank)) % 2**63)
