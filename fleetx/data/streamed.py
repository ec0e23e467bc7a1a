"""The share of a dataset that can only be read from front to back."""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from fleetx.data.fillers import Filling
from fleetx.data.orders import Order
from fleetx.data.portions import Portion
from fleetx.data.shares import Share, Uneven
from fleetx.data.team import Team
from fleetx.data.workers import WorkerSeed, settings_of

logger = logging.getLogger(__name__)


class StreamedShare:
    """A worker's part of an `IterableDataset`: element i goes to worker i % size.

    Args:
        loader: the user's.
        team: the workers among which elements are dealt.
        peers: all workers; more than `team` where the dataset already deals.
        uneven: see `distributed_loader`.
        portion: what a worker takes at once, which is what the loader says.
    """

    def __init__(
        self, loader: DataLoader[Any], team: Team, *, peers: Team, uneven: Uneven, portion: Portion
    ) -> None:
        self._loader, self._team, self._peers = loader, team, peers
        self._share = Share(
            rank=team.rank, size=team.size, batch_size=portion.batch_size, uneven=uneven
        )
        self._inner = loader if peers.size == 1 else self._make_inner(loader)
        # All ranks must see the same stream to take turns in it.
        self._seed = WorkerSeed(self._inner, loader, peers, alike=team.size > 1)
        if team.rank == 0 and team.size > 1:
            verb = "left out" if uneven == "drop" else "repeated"
            logger.info(
                "an IterableDataset on %d workers: where a stream does not divide evenly, up to "
                "%d of its elements are %s in every epoch",
                team.size,
                team.size - 1,
                verb,
            )

    @property
    def step(self) -> int:
        """Elements that go into one batch on every worker."""
        return self._share.step

    def __len__(self) -> int:
        if self._team.size == 1:
            return len(self._loader)
        dataset: Any = self._loader.dataset
        if not isinstance(dataset, Sized):
            raise TypeError(f"{type(dataset).__name__} has no length, so its loader has none")
        mine = self._share.kept(len(dataset)) // self._share.size
        size = self._share.batch_size
        return mine // size if self._loader.drop_last else -(-mine // size)

    @property
    def rank(self) -> int:
        """This worker's number among those that share the data."""
        return self._share.rank

    def batches(self, epoch: int, given: int, order: Order | None) -> Iterator[tuple[Any, Filling]]:
        """The batches of one epoch; a stream has no index, so the given ones are read again."""
        assert order is None
        skipped, rest = divmod(given, self.step)
        if rest:
            raise ValueError(
                f"the saved epoch stopped after {given} elements, which is no multiple of the "
                f"{self.step} that the workers now take per step. Resume a stream with the same "
                "batch size and number of workers, or start the epoch anew with set_epoch()."
            )
        self._seed.draw(epoch)
        found = itertools.islice(self._in_step(), skipped, None)
        if self._team.size == 1:
            return ((batch, Filling()) for batch in found)
        return ((batch, _filling(flags)) for batch, flags in found)

    def order_state(self) -> dict[str, Any]:
        """A stream has no order to keep."""
        return {"order": None, "lengths": None}

    def _make_inner(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        dataset = loader.dataset
        if self._team.size > 1:
            dataset = _Turns(dataset, self._share)
        batching: dict[str, Any] = {"batch_size": loader.batch_size}
        if loader.batch_size is not None:
            batching["drop_last"] = loader.drop_last
        settings = settings_of(loader, self._peers)
        if self._team.size > 1:
            settings["collate_fn"] = _Collated(loader.collate_fn, loader.batch_size is not None)
        return DataLoader(dataset, **batching, **settings)

    def _in_step(self) -> Iterator[Any]:
        """All workers stop when one runs out; what others still had is said."""
        end = object()
        iterator = iter(self._inner)
        while True:
            batch = next(iterator, end)
            if not self._peers.all_have(batch is not end):
                if batch is not end:
                    logger.warning(
                        "another worker ran out of data: worker %d leaves out a batch and what "
                        "follows it",
                        self._peers.rank,
                    )
                return
            yield batch


def _filling(flags: Sequence[bool]) -> Filling:
    return Filling(len(flags), tuple(at for at, flag in enumerate(flags) if flag))


class _Collated:
    """What makes a batch of elements, and tells which of them are fillers."""

    def __init__(self, collate: Callable[[Any], Any], batched: bool) -> None:
        self._collate, self._batched = collate, batched

    def __call__(self, given: Any) -> tuple[Any, list[bool]]:
        """The batch, and a flag for each of its elements."""
        pairs = given if self._batched else [given]
        elements = [element for element, _ in pairs]
        batch = self._collate(elements if self._batched else elements[0])
        return batch, [flag for _, flag in pairs]


class _Turns(IterableDataset[Any]):
    """Every `size`-th element of another dataset, and whether it fills the last round.

    A worker's init function often sets attributes of the dataset it finds, to deal files to the
    processes of a loader: attributes are therefore those of the other dataset.
    """

    _OWN = ("_dataset", "_share")

    def __init__(self, dataset: Any, share: Share) -> None:
        self._dataset = dataset
        self._share = share

    @override
    def __iter__(self) -> Iterator[Any]:
        rank, size = self._share.rank, self._share.size
        stream = iter(self._dataset)
        while turn := list(itertools.islice(stream, size)):
            if len(turn) == size or self._share.uneven != "drop":
                yield turn[rank % len(turn)], self._share.uneven == "mark" and rank >= len(turn)

    def __getattr__(self, name: str) -> Any:
        if name in self._OWN:  # asked by pickle before they are set
            raise AttributeError(name)
        return getattr(self._dataset, name)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._dataset, name, value)
