"""Data sets of ``paddle.io``."""

import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset as TorchIterable
from typing_extensions import override


class Dataset:
    """Samples by number: subclasses have ``__getitem__`` and ``__len__``."""

    def __getitem__(self, idx: int) -> Any:
        raise NotImplementedError(f"'__getitem__' is not written in {type(self).__name__}")

    def __len__(self) -> int:
        raise NotImplementedError(f"'__len__' is not written in {type(self).__name__}")


class IterableDataset(Dataset, TorchIterable):  # type: ignore[type-arg]
    """Samples one after the other: subclasses have ``__iter__``."""

    @override
    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"'__iter__' is not written in {type(self).__name__}")

    @override
    def __getitem__(self, idx: int) -> Any:
        raise RuntimeError("an IterableDataset has no samples by number; iterate over it.")

    @override
    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} has no length; it is iterated over.")


class TensorDataset(Dataset):
    """Rows of tensors that have equally many."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        if len({len(tensor) for tensor in tensors}) > 1:
            raise ValueError("TensorDataset(): tensors must have equally many rows.")
        self.tensors = tensors

    @override
    def __getitem__(self, idx: int) -> Any:
        return tuple(tensor[idx] for tensor in self.tensors)

    @override
    def __len__(self) -> int:
        return len(self.tensors[0])


def _fields(sample: Any) -> list[Any]:
    return list(sample) if isinstance(sample, (list, tuple)) else [sample]


class ComposeDataset(Dataset):
    """Fields of several data sets beside each other."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)

    @override
    def __getitem__(self, idx: int) -> Any:
        return tuple(field for each in self.datasets for field in _fields(each[idx]))

    @override
    def __len__(self) -> int:
        return min(len(each) for each in self.datasets)


class ChainDataset(IterableDataset):
    """Several streams one behind the other."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)

    @override
    def __iter__(self) -> Iterator[Any]:
        for each in self.datasets:
            yield from each


class ConcatDataset(Dataset):
    """Several data sets one behind the other."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)
        self.cumulative_sizes = list(accumulate(len(each) for each in self.datasets))

    @override
    def __getitem__(self, idx: int) -> Any:
        idx = idx if idx >= 0 else len(self) + idx
        which = bisect.bisect_right(self.cumulative_sizes, idx)
        before = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][idx - before]

    @override
    def __len__(self) -> int:
        return self.cumulative_sizes[-1] if self.cumulative_sizes else 0


class Subset(Dataset):
    """Some samples of a data set."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    @override
    def __getitem__(self, idx: int) -> Any:
        return self.dataset[self.indices[idx]]

    @override
    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Any, lengths: Sequence[int], generator: Any = None) -> list[Subset]:
    """Parts of these lengths, drawn at random."""
    if sum(lengths) != len(dataset):
        raise ValueError(
            f"random_split(): lengths {list(lengths)} do not add up to {len(dataset)} samples."
        )
    order = np.random.permutation(len(dataset)).tolist()
    ends = list(accumulate(lengths))
    pairs = zip(ends, lengths, strict=True)
    return [Subset(dataset, order[end - length : end]) for end, length in pairs]
