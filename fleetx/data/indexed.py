"""The share of a dataset that is read by index."""

import contextlib
import logging
from collections.abc import Iterator, Sized
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler

from fleetx.data import orders
from fleetx.data.fillers import Filling
from fleetx.data.orders import Order
from fleetx.data.portions import Portion
from fleetx.data.shares import Share, Uneven
from fleetx.data.team import Team
from fleetx.data.workers import WorkerSeed, draws_undone, settings_of

logger = logging.getLogger(__name__)


class IndexedShare:
    """A worker's part of the order that a sampler or batch sampler draws for each epoch.

    Args:
        loader: the user's.
        team: the workers among which the order is dealt.
        peers: all workers; more than `team` where the sampler already deals.
        uneven: see `distributed_loader`.
        portion: what a worker takes at once.
    """

    def __init__(
        self, loader: DataLoader[Any], team: Team, *, peers: Team, uneven: Uneven, portion: Portion
    ) -> None:
        self._loader = loader
        share = Share(
            rank=team.rank,
            size=team.size,
            batch_size=portion.batch_size,
            uneven=uneven,
            drop_last=loader.drop_last,
            merged=portion.merged,
        )
        # Of its own, not of this object: a cycle through the loader would leave the end of its
        # processes to the garbage collector, which closes their queues first and then waits.
        self._entries = entries = Entries(loader, share, team, peers)
        source: dict[str, Any] = {"batch_sampler": entries}
        if entries.is_unbatched:
            source = {"sampler": entries, "batch_size": None}
        settings = settings_of(loader, peers)
        if uneven == "mark" and (peers.size > 1 or entries.has_blanks):
            # The batch that is filled up is known by its number.
            settings["in_order"] = True
        inner: DataLoader[Any] = DataLoader(loader.dataset, **source, **settings)
        self._inner = inner
        self._seed = WorkerSeed(inner, loader, peers, alike=False)

    @property
    def step(self) -> int:
        """Entries of the order that go into one batch on every worker."""
        return self._entries.share.step

    def __len__(self) -> int:
        return self._entries.num_batches

    @property
    def rank(self) -> int:
        """This worker's number among those that share the data."""
        return self._entries.share.rank

    def batches(self, epoch: int, given: int, order: Order | None) -> Iterator[tuple[Any, Filling]]:
        """The batches of one epoch, after the first `given` entries of `order` or a new one."""
        self._entries.given, self._entries.order = given, order
        with draws_undone(self._loader.generator) if given else contextlib.nullcontext():
            self._seed.draw(epoch)
            found = iter(self._inner)
        # The loader asks for indices ahead, so what fills a batch is known when it comes.
        return ((batch, self._entries.fillings[at]) for at, batch in enumerate(found))

    def order_state(self) -> dict[str, Any]:
        """What it takes to find the order of this epoch again."""
        order = self._entries.order
        if order is None or self._entries.is_sequential:
            return {"order": None, "lengths": None}
        return order.state_dict()


class Entries:
    """What the loader of a worker reads: indices, or lists of them, anew in each epoch."""

    def __init__(self, loader: DataLoader[Any], share: Share, team: Team, peers: Team) -> None:
        self._whole_batches = loader.batch_size is None and loader.batch_sampler is not None
        self._sampler: Any = loader.batch_sampler if self._whole_batches else loader.sampler
        self._team, self._peers = team, peers
        self.share = share
        self.is_unbatched = loader.batch_size is None and not self._whole_batches
        self.is_sequential = type(self._sampler) is SequentialSampler
        self.order: Order | None = None
        """The order of the running epoch, once it is drawn."""
        self.given = 0
        """How much of it was given before the epoch was interrupted."""
        self.fillings: list[Filling] = []
        """What fills the batches of the running epoch."""
        self._blank = getattr(loader.dataset, "is_filler", None)
        self.has_blanks = callable(self._blank)
        self._check()

    @property
    def num_batches(self) -> int:
        """In a whole epoch."""
        return self.share.num_batches(len(self._sampler))

    def __iter__(self) -> Iterator[Any]:
        """Draw the order and deal it.

        The order is drawn only when the first is asked for: a plain loader draws the seed of its
        workers first, and the generator must see the same sequence.
        """
        if self.order is None:
            mine = orders.draw(self._sampler, whole_batches=self._whole_batches)
            self.order = orders.agree(mine, self._team)
        positions = self._cut_to_peers(self.share.positions(len(self.order), self.given))
        entries = self.order.take(positions)
        flags = self._flags(entries)
        if self.is_unbatched or self._whole_batches:
            self.fillings = [_all_or_none(*pair) for pair in zip(entries, flags, strict=True)]
            yield from entries
            return
        cuts = self.share.cuts(len(entries))
        self.fillings = [_filling(flags[cut.start : cut.stop]) for cut in cuts]
        for cut in cuts:
            yield entries[cut.start : cut.stop]

    def _flags(self, entries: list[Any]) -> list[bool]:
        """Whether each entry of this worker only fills its share."""
        assert self.order is not None
        flags: list[bool] = self.share.is_filler(len(self.order), self.given).tolist()
        if type(self._sampler) is DistributedSampler and self.share.uneven == "mark":
            flags = _repeated_by(self._sampler, len(entries))
        if self._blank is not None and self.has_blanks and not self._whole_batches:
            flags = [
                flag or self._blank(entry) for flag, entry in zip(flags, entries, strict=False)
            ]
        return flags[: len(entries)]

    def _cut_to_peers(self, positions: Tensor) -> Tensor:
        """As many as every peer has, where a sampler that deals by itself dealt unevenly."""
        if self._team.size == self._peers.size:
            return positions
        least = self._peers.least(len(positions))
        if least < len(positions):
            logger.warning(
                "the sampler gave worker %d more than others: %d entries are left out",
                self._peers.rank,
                len(positions) - least,
            )
        return positions[:least]

    def _check(self) -> None:
        name = type(self._sampler).__name__
        if not isinstance(self._sampler, Sized):
            raise ValueError(
                f"{name} has no length, so the workers cannot know how many batches each of them "
                "gets. Give it a __len__, or use an IterableDataset."
            )
        noun = "batch" if self._whole_batches else "sample"
        _check_count(len(self._sampler), self.share, noun)
        if not (self._team.can_agree or self.is_sequential):
            raise ValueError(
                f"the {self._team.size} workers of this job cannot reach each other, so they "
                f"cannot agree on an order drawn by {name}. Set shuffle=False, or shard the data "
                "yourself and set sharded=True."
            )
        remark = self.share.remark(len(self._sampler), noun)
        if remark and self._team.rank == 0 and self._team.size > 1:
            logger.info("%s", remark)


def _filling(flags: list[bool]) -> Filling:
    return Filling(len(flags), tuple(at for at, flag in enumerate(flags) if flag))


def _all_or_none(entry: Any, flag: bool) -> Filling:
    """A batch that was made by the sampler or the data set, and is repeated as a whole."""
    return _filling([flag] * (len(entry) if isinstance(entry, list) else 1))


def _repeated_by(sampler: DistributedSampler[Any], count: int) -> list[bool]:
    """What torch's sampler repeats: it deals in turn, and begins anew behind the last sample."""
    real = len(sampler.dataset)  # type: ignore[arg-type]
    return [sampler.rank + at * sampler.num_replicas >= real for at in range(count)]


def _check_count(count: int, share: Share, noun: str) -> None:
    if count == 0:
        raise ValueError(f"the loader has no {noun}, so there is nothing to share. Check its data.")
    if count < share.size and share.uneven != "mark":
        raise ValueError(
            f"{count} {noun}(s) cannot be shared by {share.size} workers: some would have none. "
            f"Start at most {count} worker(s), use more data, or set uneven='mark'."
        )
    if share.kept(count) == 0:
        raise ValueError(
            f"drop_last=True leaves nothing: {share.size} workers with batches of "
            f"{share.batch_size} need {share.step} samples for one step, and there are {count}. "
            "Set drop_last=False, or a smaller batch_size."
        )
