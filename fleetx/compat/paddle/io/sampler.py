"""Orders of samples: ``paddle.io`` draws them from numpy's own random numbers."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx import roles


class Sampler:
    """An order: subclasses have ``__iter__``."""

    def __init__(self, data_source: Any = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"'__iter__' is not written in {type(self).__name__}")

    def __len__(self) -> int:
        return len(self.data_source)


class SequenceSampler(Sampler):
    """From the first to the last."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))


class RandomSampler(Sampler):
    """In a random order, or drawn with replacement."""

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
    ) -> None:
        super().__init__(data_source)
        self.replacement, self._num_samples, self.generator = replacement, num_samples, generator
        if num_samples is not None and not replacement and num_samples > len(data_source):
            raise ValueError(
                f"RandomSampler(num_samples={num_samples}) asks for more than the "
                f"{len(data_source)} samples there are; pass replacement=True."
            )

    @property
    def num_samples(self) -> int:
        """How many are drawn."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    @override
    def __iter__(self) -> Iterator[int]:
        if self.generator:
            source = iter(self.generator() if callable(self.generator) else self.generator)
            for _ in range(self.num_samples):
                yield next(source)
            return
        count = len(self.data_source)
        drawn = np.random.choice(count, self.num_samples, replace=self.replacement)
        yield from drawn.tolist()

    @override
    def __len__(self) -> int:
        return self.num_samples


class WeightedRandomSampler(Sampler):
    """Drawn by weights."""

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True) -> None:
        super().__init__()
        self.weights, self.num_samples = np.asarray(weights, "float64"), num_samples
        self.replacement = replacement

    @override
    def __iter__(self) -> Iterator[int]:
        chances = self.weights / self.weights.sum()
        drawn = np.random.choice(len(chances), self.num_samples, self.replacement, chances)
        return iter(drawn.tolist())

    @override
    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Some samples in a random order."""

    def __init__(self, indices: Sequence[int]) -> None:
        super().__init__(indices)

    @override
    def __iter__(self) -> Iterator[int]:
        order = np.random.permutation(len(self.data_source)).tolist()
        return iter([self.data_source[at] for at in order])


class BatchSampler(Sampler):
    """The numbers of the samples of each batch."""

    def __init__(
        self,
        dataset: Any = None,
        sampler: Any = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ) -> None:
        if (dataset is None) == (sampler is None):
            raise ValueError("BatchSampler() takes a dataset or a sampler, one of the two.")
        if batch_size < 1:
            raise ValueError(f"BatchSampler(batch_size={batch_size!r}) is a positive number.")
        super().__init__(dataset)
        kind = RandomSampler if shuffle else SequenceSampler
        self.sampler = kind(dataset) if sampler is None else sampler
        self.shuffle, self.batch_size, self.drop_last = shuffle, batch_size, drop_last

    @override
    def __iter__(self) -> Iterator[list[int]]:
        yield from self._cut(self.sampler)

    def _cut(self, order: Any) -> Iterator[list[int]]:
        batch: list[int] = []
        for number in order:
            batch.append(number)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    @override
    def __len__(self) -> int:
        count = len(self.sampler)
        whole = count // self.batch_size
        return whole if self.drop_last else whole + bool(count % self.batch_size)


class DistributedBatchSampler(BatchSampler):
    """The same for one of several workers: each takes every n-th batch."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        dataset: Any,
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, batch_size=batch_size, drop_last=drop_last)
        self.dataset, self.shuffle, self.epoch = dataset, shuffle, 0
        started = roles.started()
        workers = roles.worker_num() if started else 1
        self.nranks = num_replicas if num_replicas is not None else workers
        own = roles.worker_index() if started else 0
        self.local_rank = rank if rank is not None else own
        self.num_samples = math.ceil(len(dataset) / self.nranks)
        self.total_size = self.num_samples * self.nranks

    @override
    def __iter__(self) -> Iterator[list[int]]:
        count = len(self.dataset)
        order = np.arange(count).tolist()
        order += order[: self.total_size - count]
        if self.shuffle:
            np.random.RandomState(self.epoch).shuffle(order)
            self.epoch += 1
        yield from self._cut(self._share(order) if self.nranks > 1 else order)

    def _share(self, order: list[int]) -> list[int]:
        """Whole batches in turn; what is left is dealt out in equal parts."""
        last = self.total_size % (self.batch_size * self.nranks)
        whole = self.total_size - last
        found: list[int] = []
        step = self.batch_size * self.nranks
        for begin in range(self.local_rank * self.batch_size, whole, step):
            found += order[begin : begin + self.batch_size]
        each = last // self.nranks
        rest = order[whole:]
        return found + rest[self.local_rank * each : (self.local_rank + 1) * each]

    @override
    def __len__(self) -> int:
        whole = self.num_samples // self.batch_size
        return whole if self.drop_last else whole + bool(self.num_samples % self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """The number from which the next order is drawn."""
        self.epoch = epoch
