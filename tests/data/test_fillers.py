"""Metrics count every sample once, whatever the workers repeat to stay in step."""

import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    get_worker_info,
)
from typing_extensions import override

import fleetx as fleet
from fleetx import roles
from fleetx.data import distributed_loader
from fleetx.data.fillers import current
from fleetx.metrics import AUC, MAE, Accuracy
from fleetx.testing import world
from tests.data.numbers import Numbers

SIZES = [1, 3, 6, 7]


class Blank(Numbers):
    """Brings entries of its own that are no samples, as images do."""

    def __init__(self, count: int) -> None:
        super().__init__(count + count % 2)
        self.real = count

    def is_filler(self, index: int) -> bool:
        return index >= self.real


class Stream(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    @override
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, self.count, step))


def loaders(count: int) -> dict[str, DataLoader[Any]]:
    numbers = Numbers(count)
    batches = BatchSampler(SequentialSampler(numbers), 2, drop_last=False)
    return {
        "in order": DataLoader(numbers, 3),
        "shuffled": DataLoader(numbers, 2, shuffle=True),
        "whole batches": DataLoader(numbers, batch_sampler=batches),
        "one at a time": DataLoader(numbers, batch_size=None),
        "a sampler that deals": DataLoader(numbers, 3, sampler=DistributedSampler(numbers)),
        "blank entries": DataLoader(Blank(count), 2),
        "a stream": DataLoader(Stream(count), 2),
    }


Seen = tuple[list[int], float, int]


def gathered(loader: DataLoader[Any], **options: Any) -> Seen:
    """Every sample that a metric of others would see, and what ours counted on this worker."""
    seen, mean = list[int](), MAE()
    for batch in distributed_loader(loader, **options):
        rows = torch.as_tensor(batch).reshape(-1)
        seen += fleet.gather_for_metrics(rows).tolist()
        mean.update(rows, torch.zeros_like(rows))
    assert current().at == (), "nothing is left behind"
    return sorted(seen), mean.amount, mean.count


def everything() -> dict[str, Seen]:
    fleet.init(is_collective=True)
    return {
        f"{count} {name}": gathered(loader)
        for count in SIZES
        for name, loader in loaders(count).items()
    }


def test_every_sample_counts_once_on_two_workers() -> None:
    first, second = world(2).run(everything)
    for name, (seen, *mine) in first.items():
        numbers, (others, *theirs) = range(int(name.split()[0])), second[name]
        assert seen == others == list(numbers), name
        assert [sum(both) for both in zip(mine, theirs, strict=True)] == [
            sum(numbers),
            len(numbers),
        ], name


def test_streams_of_several_processes_end_apart() -> None:
    def run() -> Seen:
        fleet.init(is_collective=True)
        return gathered(DataLoader(Stream(7), 2, num_workers=2))

    found = world(2).run(run)
    assert [seen for seen, *_ in found] == [list(range(7))] * 2
    assert sum(count for *_, count in found) == 7


def test_padding_without_marks_counts_what_it_repeats() -> None:
    def run() -> list[int]:
        fleet.init(is_collective=True)
        return gathered(DataLoader(Numbers(5), 2), uneven="pad")[0]

    assert world(2).run(run) == [[0, 0, 1, 2, 3, 4]] * 2


def test_a_share_says_which_samples_fill_it() -> None:
    def run() -> list[tuple[int, ...]]:
        fleet.init(is_collective=True)
        loader = distributed_loader(DataLoader(Numbers(5), 2))
        return [loader.fillers for _ in loader]

    assert world(2).run(run) == [[(), ()], [(), (0,)]]


def measured() -> list[float]:
    fleet.init(is_collective=True)
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.rand(5, 3, generator=generator), torch.tensor([0, 1, 2, 0, 1])
    loader = DataLoader(TensorDataset(scores, labels), 2)
    right, area, words = Accuracy(), AUC(), Accuracy()
    for batch in distributed_loader(loader):
        right.update(*batch)
        area.update(batch[0][:, 0], batch[1] == 0)
        # Several rows for each sample, as words have.
        words.update(batch[0].repeat_interleave(4, 0), batch[1].repeat_interleave(4))
        for _ in distributed_loader(DataLoader(Numbers(8), 2)):
            pass  # a loop inside, as of a validation, changes nothing
    assert words.counts[1] == 4 * right.counts[1]
    return [right.compute(), area.compute(), words.compute()]


def test_our_metrics_are_those_of_one_process() -> None:
    alone = world(1).run(measured)[0]
    for found in world(2).run(measured):
        assert found == pytest.approx(alone, rel=1e-12)


def test_forms_that_are_gathered() -> None:
    def run() -> Any:
        fleet.init(is_collective=True)
        for x in distributed_loader(DataLoader(Numbers(3), 4)):
            outputs = {"scores": x.to(torch.bfloat16)[:, None], "parts": (x, x > 1)}
            found, listed, array = fleet.gather_for_metrics(outputs, x.tolist(), x.numpy())
            kinds = found["scores"].dtype, found["parts"][1].dtype
            return found["parts"][0].tolist(), listed.tolist(), array.tolist(), map(str, kinds)
        return None

    for rows, listed, array, kinds in world(2).run(run):
        assert sorted(rows) == sorted(listed) == sorted(array) == [0, 1, 2]
        assert list(kinds) == ["torch.bfloat16", "torch.bool"]


def test_ranks_that_see_the_same_samples_count_once() -> None:
    def run() -> Seen:
        strategy = fleet.DistributedStrategy()
        strategy.tensor_parallel = True
        strategy.tensor_parallel_configs = {"tensor_parallel_degree": 2, "plan": "mlp"}
        fleet.init(is_collective=True, strategy=strategy)
        return gathered(DataLoader(Numbers(5), 2))

    assert world(2).run(run) == [([0, 1, 2, 3, 4], 10.0, 5)] * 2


def refusal(value: Any) -> str:
    fleet.init(is_collective=True)
    try:
        fleet.gather_for_metrics(value(roles.worker_index()))
    except (ValueError, TypeError, RuntimeError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (lambda _: torch.tensor(1.0), "of no sample"),
        (lambda _: 0.5, "of no sample"),
        (lambda _: "text", "pass a tensor"),
        (lambda index: torch.zeros(2, 3 + index), "pad them to one size"),
        (lambda index: torch.zeros(2, dtype=[torch.int32, torch.int64][index]), "torch.int64"),
    ],
)
def test_what_cannot_be_gathered_is_said_on_all_workers(value: Any, match: str) -> None:
    for said in world(2).run(refusal, value):
        assert match in said


def test_a_mistake_of_one_worker_leaves_nobody_waiting() -> None:
    def run() -> list[str]:
        fleet.init(is_collective=True)
        said = []
        for batch in distributed_loader(DataLoader(Numbers(3), 2)):
            try:  # on worker 1, whose second sample is a filler, nobody knows whose rows these are
                fleet.gather_for_metrics(torch.zeros(3 * len(batch) - 1))
            except (ValueError, RuntimeError) as error:
                said.append(str(error))
        return said

    first, second = world(2).run(run)
    assert "failed on worker 1" in first[0]
    assert "5 rows for a batch of 2 samples" in second[0]


def test_our_metrics_warn_where_rows_cannot_be_told_apart() -> None:
    def run() -> tuple[int, list[str]]:
        said, handler = list[str](), logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("fleetx.metrics.given").addHandler(handler)
        fleet.init(is_collective=True)
        metric = Accuracy()
        for batch in distributed_loader(DataLoader(Numbers(3), 2)):
            metric.update(torch.zeros(2 * len(batch) - 1, 2), [0] * (2 * len(batch) - 1))
        return metric.counts[1], said

    (_, quiet), (count, said) = world(2).run(run)
    assert (quiet, count) == ([], 3)
    assert len(said) == 1
    assert "loader.fillers" in said[0]


def test_alone_nothing_is_left_out() -> None:
    value = np.arange(3)
    found: Tensor = fleet.gather_for_metrics(value)
    assert found.tolist() == [0, 1, 2]
    assert fleet.gather_for_metrics(torch.zeros(0, 4)).shape == (0, 4)
    assert math.isnan(MAE().compute())
