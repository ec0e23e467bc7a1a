"""`distributed_loader`: each worker iterates over its share of a `DataLoader`."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from fleetx.comm.transfer import to_device
from fleetx.data.ahead import done_ahead
from fleetx.data.fillers import Filling, gives, running
from fleetx.data.indexed import IndexedShare
from fleetx.data.orders import Order
from fleetx.data.portions import portion_of
from fleetx.data.shares import UNEVEN, Uneven
from fleetx.data.streamed import StreamedShare
from fleetx.data.team import Team, find_device, find_team
from fleetx.expected import FUNCTION, a, expect

logger = logging.getLogger(__name__)

_GROUP = a(dist.ProcessGroup, "a process group of torch.distributed")


def distributed_loader(
    loader: DataLoader[Any],
    *,
    uneven: Uneven = "mark",
    sharded: bool = False,
    device: torch.device | str | None = None,
    group: dist.ProcessGroup | None = None,
    then: Callable[[Any], Any] | None = None,
    ahead: Callable[[Any], Any] | None = None,
) -> "DistributedLoader":
    """This worker's share of `loader`.

    With k workers and batches of b, the i-th batches of all workers together are the i-th batch
    of one process with batches of k*b. With one worker, it is what `loader` gives.

    Args:
        loader: any `DataLoader`. Its sampler is drawn on worker 0 and the order is sent to the
            others. A `DistributedSampler` is left to deal by itself.
        uneven: where the workers do not divide the number of samples, "mark" and "pad" repeat the
            first ones, and "drop" leaves out the last. What "mark" repeats is no sample for
            metrics of fleetx and for `fleet.gather_for_metrics`; `fillers` says which. With
            `drop_last=True` the loader leaves out the last incomplete batch of all workers
            together, and nothing is uneven.
        sharded: the dataset or sampler already gives each worker its own part.
        device: where the tensors of each batch go; by default the device that fleet.init() chose.
        group: the processes that share the data, where they are not all workers of the job: with
            tensor or pipeline parallelism, the group of the data axis.
        then: what is done to each batch once it is on the device.
        ahead: what is done to each batch before it goes there, on a thread of its own, while
            earlier batches are trained.
    """
    _check(loader, uneven)
    expect("distributed_loader", "group", group, _GROUP | None)
    function = FUNCTION.such_as("a function of a batch") | None
    expect("distributed_loader", "then", then, function)
    expect("distributed_loader", "ahead", ahead, function)
    peers = find_team(group)
    team = Team() if sharded or _deals_by_itself(loader) else peers
    kind = StreamedShare if isinstance(loader.dataset, IterableDataset) else IndexedShare
    target = torch.device(device) if device is not None else find_device()
    share = kind(loader, team, peers=peers, uneven=uneven, portion=portion_of(loader))
    return DistributedLoader(loader, share, target, then, ahead)


class DistributedLoader:
    """An iterable over this worker's batches that counts the epochs.

    `epoch` is the epoch that runs, or the next one if none does.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        share: IndexedShare | StreamedShare,
        device: torch.device | None,
        then: Callable[[Any], Any] | None = None,
        ahead: Callable[[Any], Any] | None = None,
    ) -> None:
        expect("DistributedLoader", "loader", loader, a(DataLoader, "a DataLoader"))
        self.loader = loader
        self.epoch = 0
        self._share = share
        self._device = device
        self._then, self._ahead = then, ahead
        self._is_running = False
        self._given = 0
        self._order: Order | None = None
        self._filling = Filling()
        self._told = 0
        """The epoch of which a sampler that deals by itself heard last, from here."""
        _warn_of_deaf_workers(loader)

    @property
    def filling(self) -> Filling:
        """How many samples the last batch has, and which of them only fill it up."""
        return self._filling

    @property
    def fillers(self) -> tuple[int, ...]:
        """Which samples of the last batch were repeated only to fill it, by their places in it."""
        return self._filling.at

    def __len__(self) -> int:
        """Batches in a whole epoch, the same on every worker."""
        return len(self._share)

    def __iter__(self) -> Iterator[Any]:
        """Run the next epoch, or the rest of one that was loaded."""
        if self._is_running:  # the last iteration was left before its end
            self.set_epoch(self.epoch + 1)
        self._hear_epoch()
        self._is_running = True
        self._tell_epoch()
        order, self._order = self._order, None
        with running() as here:
            for batch, filling in self._batches(order):
                self._given += self._share.step
                self._filling = filling
                gives(here, filling)
                moved = batch if self._device is None else to_device(batch, self._device)
                yield moved if self._then is None else self._then(moved)
        if not self._given:
            logger.warning(
                "epoch %d had no batch: %s gave worker %d nothing; check its data and batch size",
                *(self.epoch, type(self.loader.dataset).__name__, self._share.rank),
            )
        self.set_epoch(self.epoch + 1)

    def _batches(self, order: Order | None) -> Iterator[tuple[Any, Filling]]:
        found = self._share.batches(self.epoch, self._given, order)
        return found if self._ahead is None else done_ahead(self._ahead, found)

    def __call__(self) -> Iterator[Any]:
        """The same, as the documents write it: ``for batch in loader():``."""
        return iter(self)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch; only needed to deviate from 0, 1, 2, ...

        An epoch that was loaded half done is still resumed if it has this number.
        """
        if epoch != self.epoch or self._is_running:
            self._given, self._order = 0, None
        self.epoch = epoch
        self._is_running = False

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and how much of which order all workers together have been given.

        The order itself is kept, four bytes per sample, because any sampler can have drawn it.
        The state is the same on all workers unless the data was already sharded.
        """
        generator = _generator_of(self.loader)
        return {
            "epoch": self.epoch,
            "given": self._given,
            "generator": generator.get_state() if generator else None,
            **self._saved_order(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken: the next iteration gives the next batch."""
        if missing := {"epoch", "given", "order", "lengths"} - set(state):
            raise ValueError(
                f"the state has no {', '.join(sorted(missing))}, so it was not made by "
                "DistributedLoader.state_dict(). Load the state that it returned."
            )
        self._is_running = False
        self.epoch, self._given = state["epoch"], state["given"]
        self._order = Order.from_state(state)
        generator = _generator_of(self.loader)
        if generator and state.get("generator") is not None:
            generator.set_state(state["generator"])

    def _saved_order(self) -> dict[str, Any]:
        if self._order is not None:  # loaded, and not yet begun
            return self._order.state_dict()
        if self._given == 0:
            return {"order": None, "lengths": None}
        return self._share.order_state()

    def _hear_epoch(self) -> None:
        """A script may have told the sampler, as those of torch do: it deviates from 0, 1, 2."""
        for part in _parts_of(self.loader):
            if isinstance(part, DistributedSampler) and part.epoch != self._told:
                self.set_epoch(part.epoch)

    def _tell_epoch(self) -> None:
        self._told = self.epoch
        for part in _parts_of(self.loader):
            if callable(tell := getattr(part, "set_epoch", None)):
                tell(self.epoch)


def _parts_of(loader: DataLoader[Any]) -> list[Any]:
    """The dataset and the samplers, each once."""
    parts = [loader.dataset, loader.sampler, loader.batch_sampler]
    parts.append(getattr(loader.batch_sampler, "sampler", None))
    return list({id(part): part for part in parts if part is not None}.values())


def _deals_by_itself(loader: DataLoader[Any]) -> bool:
    return any(isinstance(part, DistributedSampler) for part in _parts_of(loader))


def _generator_of(loader: DataLoader[Any]) -> torch.Generator | None:
    """The generator that draws the order, where it is not torch's global one."""
    candidates = (getattr(part, "generator", None) for part in [*_parts_of(loader)[1:], loader])
    return next((found for found in candidates if isinstance(found, torch.Generator)), None)


def _warn_of_deaf_workers(loader: DataLoader[Any]) -> None:
    hears = getattr(loader.dataset, "shares_epoch", not hasattr(loader.dataset, "set_epoch"))
    if loader.persistent_workers and not hears:
        logger.warning(
            "persistent_workers=True keeps copies of the dataset that set_epoch() does not reach; "
            "set persistent_workers=False if the data depends on the epoch"
        )


def _check(loader: object, uneven: str) -> None:
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"distributed_loader() got a {type(loader).__name__}, whose indices it cannot share. "
            "Pass a torch.utils.data.DataLoader."
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise TypeError(
            f"{type(loader).__name__} has an __iter__ of its own, which a share would bypass. "
            "Pass a plain DataLoader, and wrap what distributed_loader() returns."
        )
    if uneven not in UNEVEN:
        raise ValueError(
            f"uneven={uneven!r} is not known. Set uneven to {' or '.join(map(repr, UNEVEN))}."
        )
