"""k workers on batches of b see what one process sees on batches of k*b."""

import itertools
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from typing_extensions import override

from fleetx.data import DistributedLoader, distributed_loader
from fleetx.testing import world
from tests.data.numbers import Numbers

COUNT, BATCH = 43, 3


class Noisy(Numbers):
    """Random augmentation."""

    @override
    def __getitem__(self, index: int) -> Any:
        return torch.rand(())


class Stream(IterableDataset[int]):
    """Numbers in order, dealt to the processes of the loader by file, so to say."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @override
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first + 100 * self.epoch, self.count + 100 * self.epoch, step))


class Ragged(IterableDataset[int]):
    """Longer on later ranks, and already dealt."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(10 + 5 * dist.get_rank()))


class Buckets(Sampler[list[int]]):
    """Batches of different lengths in random order."""

    def __init__(self, count: int = COUNT) -> None:
        self.batches = [list(range(at, min(at + 1 + at % 4, count))) for at in range(0, count, 4)]

    def __len__(self) -> int:
        return len(self.batches)

    @override
    def __iter__(self) -> Iterator[list[int]]:
        yield from random.sample(self.batches, len(self.batches))


class Backwards(Sampler[int]):
    epochs: list[int]

    def __init__(self) -> None:
        self.epochs = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return COUNT

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT - 1, -1, -1))


def sequential(batch: int) -> DataLoader[int]:
    return DataLoader(Numbers(COUNT), batch)


def shuffled(batch: int) -> DataLoader[int]:
    return DataLoader(Numbers(COUNT), batch, shuffle=True)


def shuffled_by_generator(batch: int) -> DataLoader[int]:
    return DataLoader(
        Numbers(COUNT), batch, shuffle=True, generator=torch.Generator().manual_seed(5)
    )


def weighted(batch: int) -> DataLoader[int]:
    weights = [1.0 + i for i in range(COUNT)]
    return DataLoader(Numbers(COUNT), batch, sampler=WeightedRandomSampler(weights, 60))


def custom(batch: int) -> DataLoader[int]:
    return DataLoader(Numbers(COUNT), batch, sampler=Backwards())


def dropping(batch: int) -> DataLoader[int]:
    return DataLoader(Numbers(COUNT), batch, shuffle=True, drop_last=True)


def with_processes(batch: int) -> DataLoader[int]:
    return DataLoader(Numbers(COUNT), batch, shuffle=True, num_workers=2, persistent_workers=True)


MAKERS = [sequential, shuffled, shuffled_by_generator, weighted, custom, dropping]


def read(loader: Any, epochs: int = 2) -> list[list[list[int]]]:
    """Batches as lists, by epoch."""
    return [[_plain(batch) for batch in loader] for _ in range(epochs)]


def _plain(batch: Any) -> list[int]:
    return batch.tolist() if isinstance(batch, torch.Tensor) else list(batch)


def shared(make: Callable[[int], DataLoader[Any]], **options: Any) -> list[list[list[int]]]:
    # Other ranks have other seeds: only the draw of rank 0 may count.
    torch.manual_seed(dist.get_rank())
    loader = distributed_loader(make(BATCH), **options)
    epochs = read(loader)
    assert all(len(epoch) == len(loader) for epoch in epochs)
    return epochs


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def together(parts: tuple[list[int], ...]) -> list[int]:
    """Put the batches of all ranks back in the order of one process."""
    return [entry for entries in zip(*parts, strict=True) for entry in entries]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("size", [2, 4])
def test_equal_to_one_process(size: int, make: Callable[[int], DataLoader[int]]) -> None:
    torch.manual_seed(0)
    plain = read(make(size * BATCH))
    ranks = world(size).run(shared, make)
    for epoch, alone in enumerate(plain):
        batches = [together(parts) for parts in zip(*(r[epoch] for r in ranks), strict=True)]
        assert batches[:-1] == alone[:-1]
        rest = len(alone[-1])
        padding = -rest % size
        assert batches[-1] == alone[-1] + flat(alone)[:padding]


def test_equal_to_one_process_with_loader_processes() -> None:
    torch.manual_seed(0)
    plain = read(with_processes(2 * BATCH))
    ranks = world(2).run(shared, with_processes)
    for epoch, alone in enumerate(plain):
        batches = [together(parts) for parts in zip(*(r[epoch] for r in ranks), strict=True)]
        assert batches[:-1] == alone[:-1]


@pytest.mark.parametrize("make", [*MAKERS, with_processes])
def test_one_worker_is_the_plain_loader(make: Callable[[int], DataLoader[int]]) -> None:
    torch.manual_seed(3)
    plain, rest = read(make(BATCH)), torch.rand(1)
    torch.manual_seed(3)
    loader = distributed_loader(make(BATCH))
    assert read(loader) == plain
    assert torch.rand(1) == rest
    assert len(loader) == len(make(BATCH))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_whole_batches_of_a_batch_sampler_are_dealt(size: int, uneven: str) -> None:
    def buckets(_: int) -> DataLoader[int]:
        random.seed(dist.get_rank())
        return DataLoader(Numbers(COUNT), batch_sampler=Buckets())

    random.seed(0)
    plain = list(Buckets())
    ranks = [epochs[0] for epochs in world(size).run(shared, buckets, uneven=uneven)]
    dealt = [batch for step in zip(*ranks, strict=True) for batch in step]
    kept = len(plain) // size * size if uneven == "drop" else math.ceil(len(plain) / size) * size
    assert dealt == (plain + plain)[:kept]


def test_drop_leaves_out_the_last() -> None:
    ranks = world(4).run(shared, sequential, uneven="drop")
    seen = sorted(flat(flat(epochs[0]) for epochs in ranks))
    assert seen == list(range(40))


@pytest.mark.parametrize("size", [1, 2])
def test_without_automatic_batching(size: int) -> None:
    def single(_: int) -> DataLoader[int]:
        return DataLoader(
            Numbers(COUNT), batch_size=None, sampler=SequentialSampler(Numbers(COUNT))
        )

    def run() -> list[int]:
        return list(distributed_loader(single(0)))

    parts = world(size).run(run)
    assert together(tuple(parts)) == [*range(COUNT), *range(-COUNT % size)]


def test_a_distributed_sampler_deals_by_itself() -> None:
    def run() -> tuple[Any, Any]:
        sampler: DistributedSampler[int] = DistributedSampler(Numbers(COUNT), seed=1)
        ours = read(distributed_loader(DataLoader(Numbers(COUNT), BATCH, sampler=sampler)))
        sampler = DistributedSampler(Numbers(COUNT), seed=1)
        theirs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            theirs += read(DataLoader(Numbers(COUNT), BATCH, sampler=sampler), 1)
        return ours, theirs

    for ours, theirs in world(2).run(run):
        assert ours == theirs
        assert ours[0] != ours[1]


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("count", [24, 29])
def test_a_stream_is_dealt_element_by_element(processes: int, count: int) -> None:
    def run(batch: int) -> list[list[list[int]]]:
        return read(distributed_loader(DataLoader(Stream(count), batch, num_workers=processes)))

    (alone,) = world(1).run(run, 2 * BATCH)
    ranks = world(2).run(run, BATCH)
    for epoch in range(2):
        steps = list(zip(*(r[epoch] for r in ranks), strict=True))
        assert all(len({len(part) for part in parts}) == 1 for parts in steps)
        batches = [together(parts) for parts in steps]
        assert [sorted(set(b)) for b in batches] == [sorted(b) for b in alone[epoch]]
        assert sum(map(len, batches)) - count in range(max(processes, 1) + 1)


def test_a_stream_with_a_worker_init_function() -> None:
    def narrow(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        dataset: Any = info.dataset
        dataset.count = 6  # the usual way to deal files to the processes of a loader

    def run() -> list[int]:
        loader = DataLoader(Stream(100), BATCH, num_workers=1, worker_init_fn=narrow)
        return flat(read(distributed_loader(loader), 1)[0])

    assert together(tuple(world(2).run(run))) == list(range(6))


def test_ranks_stop_together_when_one_runs_out() -> None:
    def run() -> tuple[int, list[str]]:
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("fleetx.data.streamed").addHandler(handler)
        batches = list(distributed_loader(DataLoader(Ragged(), 5), sharded=True))
        return len(batches), messages

    (first, nothing), (second, said) = world(2).run(run)
    assert first == second == 2
    assert not nothing
    assert "ran out" in said[0]


def test_augmentation_differs_by_rank() -> None:
    def run() -> list[float]:
        torch.manual_seed(0)
        loader = DataLoader(Noisy(8), 2, num_workers=2)
        return torch.cat(list(distributed_loader(loader))).tolist()

    one, two = world(2).run(run)
    assert not set(one) & set(two)
    assert world(2).run(run) == [one, two]


def test_epochs_advance_and_reach_sampler_and_dataset() -> None:
    sampler = Backwards()
    loader = distributed_loader(DataLoader(Numbers(COUNT), BATCH, sampler=sampler))
    read(loader)
    assert loader.epoch == 2
    for _ in loader:
        break
    assert loader.epoch == 2
    read(loader, 1)
    loader.set_epoch(7)
    read(loader, 1)
    assert sampler.epochs == [0, 1, 2, 3, 7]
    stream = Stream(4)
    read(distributed_loader(DataLoader(stream, 2)))
    assert stream.epoch == 1


@pytest.mark.parametrize("make", [*MAKERS, with_processes])
@pytest.mark.parametrize("size", [1, 2])
def test_an_interrupted_epoch_goes_on_exactly(
    size: int, make: Callable[[int], DataLoader[int]]
) -> None:
    def run() -> tuple[Any, Any, int]:
        torch.manual_seed(dist.get_rank())
        loader = distributed_loader(make(BATCH))
        whole: list[Any] = read(loader, 1)
        batches = iter(loader)
        head = [_plain(next(batches)) for _ in range(2)]
        state, rng = loader.state_dict(), torch.get_rng_state()
        tail = [_plain(batch) for batch in batches]
        whole = [head + tail, *read(loader, 1)]

        torch.manual_seed(99)
        again = distributed_loader(make(BATCH))
        torch.set_rng_state(rng)
        again.load_state_dict(state)
        again.set_epoch(1)
        resumed = read(again, 1)
        return whole, [head + resumed[0], *read(again, 1)], again.epoch

    for whole, resumed, epoch in world(size).run(run):
        assert resumed == whole
        assert epoch == 3


def test_a_resume_may_change_the_number_of_workers() -> None:
    def begin() -> tuple[dict[str, Any], list[int]]:
        loader = distributed_loader(shuffled(BATCH))
        batches = iter(loader)
        head = flat(_plain(next(batches)) for _ in range(2))
        return loader.state_dict(), head

    def go_on(state: dict[str, Any]) -> list[int]:
        loader = distributed_loader(shuffled(BATCH))
        loader.load_state_dict(state)
        return flat(read(loader, 1)[0])

    begun = world(4).run(begin)
    head = flat(part for _, part in begun)
    (tail,) = world(1).run(go_on, begun[0][0])
    assert sorted(head + tail) == list(range(COUNT))


def test_a_stream_resumes_by_reading_again() -> None:
    def run() -> tuple[Any, Any]:
        loader = distributed_loader(DataLoader(Stream(30), BATCH))
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [_plain(batch) for batch in batches]
        again = distributed_loader(DataLoader(Stream(30), BATCH))
        again.load_state_dict(state)
        return rest, read(again, 1)[0]

    for rest, resumed in world(2).run(run):
        assert resumed == rest
        assert len(rest) == 4


def test_the_state_of_a_finished_epoch_is_small() -> None:
    loader = distributed_loader(shuffled(BATCH))
    read(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["given"], state["order"]) == (2, 0, None)


def test_what_is_repeated_is_said_once() -> None:
    def run() -> list[str]:
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("fleetx.data")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        read(distributed_loader(DataLoader(Numbers(1001), 10)))
        return messages

    first, second = world(2).run(run)
    assert first == ["1,001 samples on 2 workers: 1 sample is repeated in every epoch"]
    assert not second


def test_settings_are_kept() -> None:
    loader = DataLoader(
        Numbers(COUNT),
        BATCH,
        num_workers=1,
        prefetch_factor=3,
        timeout=9,
        collate_fn=tuple,
        multiprocessing_context="fork",
        in_order=False,
    )
    inner = distributed_loader(loader)._share._inner
    for name in ("num_workers", "prefetch_factor", "timeout", "collate_fn", "in_order"):
        assert getattr(inner, name) == getattr(loader, name)
    assert inner.multiprocessing_context is loader.multiprocessing_context


def test_tensors_move_to_the_device() -> None:
    batch = next(iter(distributed_loader(sequential(BATCH), device="meta")))
    assert batch.device.type == "meta"


def test_the_data_axis_of_a_mesh() -> None:
    def run() -> list[int]:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        loader = distributed_loader(sequential(BATCH), group=mesh.get_group("dp"))
        return flat(read(loader, 1)[0])

    parts = world(4).run(run)
    assert parts[0] == parts[1]
    assert parts[2] == parts[3]
    assert together((parts[0], parts[2])) == [*range(COUNT), 0]


class NoLength(Sampler[int]):
    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class OwnIteration(DataLoader[int]):
    @override
    def __iter__(self) -> Any:
        return super().__iter__()


@pytest.mark.parametrize(
    ("make", "kind", "match"),
    [
        (lambda: [1, 2], TypeError, "Pass a torch.utils.data.DataLoader"),
        (lambda: OwnIteration(Numbers(COUNT)), TypeError, "__iter__ of its own"),
        (lambda: DataLoader(Numbers(COUNT), sampler=NoLength()), ValueError, "has no length"),
        (lambda: DataLoader(Numbers(0)), ValueError, "no sample"),
        (lambda: DataLoader(Numbers(2), 4, drop_last=True), ValueError, "leaves nothing"),
    ],
)
def test_bad_loaders_are_refused(
    make: Callable[[], Any], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match):
        distributed_loader(make())


def test_other_bad_input() -> None:
    with pytest.raises(ValueError, match="'mark' or 'pad' or 'drop'"):
        distributed_loader(sequential(2), uneven="stretch")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="was not made by"):
        distributed_loader(sequential(2)).load_state_dict({"epoch": 1})
    with pytest.raises(ValueError, match="cannot be shared by 4 workers"):
        world(4).run(lambda: distributed_loader(DataLoader(Numbers(3)), uneven="pad"))


def test_random_batches_from_torch() -> None:
    def batched(_: int) -> DataLoader[int]:
        sampler = BatchSampler(RandomSampler(Numbers(COUNT)), 4, drop_last=True)
        return DataLoader(Numbers(COUNT), batch_sampler=sampler)

    ranks = world(2).run(shared, batched, uneven="drop")
    seen = flat(flat(epochs[0]) for epochs in ranks)
    assert len(seen) == len(set(seen)) == 40


def test_the_type_is_public() -> None:
    assert isinstance(distributed_loader(sequential(2)), DistributedLoader)


def test_a_started_job_says_who_shares_the_data_and_where_it_goes() -> None:
    def run() -> tuple[list[int], str]:
        from fleetx import roles

        roles.start(is_collective=True)
        loader = distributed_loader(sequential(BATCH))
        return flat(read(loader, 1)[0]), str(loader._device)

    (one, device), (two, _) = world(2).run(run)
    assert together((one, two)) == [*range(COUNT), 0]
    assert device == "cpu"


def test_an_epoch_without_a_batch_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert list(distributed_loader(DataLoader(Stream(0), 2))) == []
    assert list(distributed_loader(DataLoader(Stream(1), 2, drop_last=True))) == []
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all("epoch 0 had no batch: Stream gave worker 0 nothing" in text for text in said)


def test_a_script_may_tell_the_sampler_of_torch_which_epoch_it_is() -> None:
    """As scripts of DDP do, and do at the epoch with which they go on."""
    sampler: Any = DistributedSampler(Numbers(8), num_replicas=1, rank=0, seed=3)
    plain = DataLoader(Numbers(8), batch_size=4, sampler=sampler)
    expected = []
    for epoch in (5, 6, 7):
        sampler.set_epoch(epoch)
        expected.append([batch.tolist() for batch in plain])
    sampler.set_epoch(0)
    loader = distributed_loader(plain)
    found = []
    for epoch in (5, 6):
        sampler.set_epoch(epoch)
        found.append([batch.tolist() for batch in loader])
    found.append([batch.tolist() for batch in loader])
    assert found == expected
    assert loader.epoch == 8
