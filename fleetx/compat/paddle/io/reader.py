"""``paddle.io.DataLoader``, over torch's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset as TorchIterable
from torch.utils.data import get_worker_info

from fleetx.compat import modes
from fleetx.compat.loaders import as_lod_tensors, from_dataset, from_generator, tensors_of
from fleetx.compat.lod_tensors import LoDTensor
from fleetx.compat.notes import note
from fleetx.compat.paddle.io.sampler import BatchSampler
from fleetx.compat.running import fed
from fleetx.static.record.program import program_of


def default_collate_fn(batch: Sequence[Any]) -> Any:
    """Samples as one batch: arrays are stacked, lists and dicts field by field."""
    first = batch[0]
    if isinstance(first, torch.Tensor):
        return np.stack([value.detach().as_subclass(torch.Tensor).numpy() for value in batch])
    if isinstance(first, (np.ndarray, np.generic)):
        return np.stack([np.asarray(value) for value in batch])
    if isinstance(first, Number):
        return np.array(batch, dtype="float32" if isinstance(first, float) else None)
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: default_collate_fn([sample[key] for sample in batch]) for key in first}
    if isinstance(first, Sequence):
        return [default_collate_fn(field) for field in zip(*batch, strict=True)]
    raise TypeError(
        f"a batch of {type(first).__name__} is not known; give samples of arrays, numbers, texts, "
        "lists or dicts, or a collate_fn."
    )


def default_convert_fn(batch: Any) -> Any:
    """A sample as it is, in arrays."""
    if isinstance(batch, (str, bytes)):
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.detach().as_subclass(torch.Tensor).numpy()
    if isinstance(batch, Number):
        return np.array([batch])
    if isinstance(batch, Mapping):
        return {key: default_convert_fn(value) for key, value in batch.items()}
    if isinstance(batch, Sequence):
        return [default_convert_fn(value) for value in batch]
    return batch


def _arrays(batch: Any) -> Any:
    """Tensors of a collate_fn as arrays: these travel between processes as they are."""
    if isinstance(batch, torch.Tensor):
        return batch.detach().as_subclass(torch.Tensor).numpy()
    if isinstance(batch, Mapping):
        return {key: _arrays(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_arrays(value) for value in batch]
    return batch


class _Collate:
    """What runs in the workers of a loader; it must be sent to them."""

    def __init__(self, own: Callable[[Any], Any]) -> None:
        self._own = own

    def __call__(self, samples: Any) -> Any:
        return _arrays(self._own(samples))


class DataLoader:
    """Batches of a data set: lists of tensors in eager mode, feeds by name in programs.

    Args:
        dataset: by number, or iterable.
        feed_list: the inputs of a program, for feeds by name.
        places: has no effect: tensors are made where the process computes.
        return_list: False with a ``feed_list`` gives feeds by name; lists else.
        batch_sampler: the samples of each batch, instead of the next three.
        batch_size: of samples; None gives samples as they are.
        shuffle: in another order in each epoch.
        drop_last: leave out a last batch that is not full.
        collate_fn: makes a batch of samples.
        num_workers: processes that read.
        use_buffer_reader: read ahead; it is done where processes read.
        prefetch_factor: batches that each of them holds.
        use_shared_memory: has no effect on what is read.
        timeout: seconds to wait for a batch.
        worker_init_fn: called in each process with its number.
        persistent_workers: keep the processes for the next epoch.
    """

    from_generator = staticmethod(from_generator)
    from_dataset = staticmethod(from_dataset)

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        dataset: Any,
        feed_list: Sequence[Any] | None = None,
        places: Any = None,
        return_list: bool | None = None,
        batch_sampler: Any = None,
        batch_size: int | None = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        num_workers: int = 0,
        use_buffer_reader: bool = True,
        prefetch_factor: int = 2,
        use_shared_memory: bool = True,
        timeout: int = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        persistent_workers: bool = False,
    ) -> None:
        self.dataset, self.feed_list = dataset, list(feed_list or [])
        self.return_list = not self.feed_list if return_list is None else return_list
        self.num_workers, self.collate_fn = num_workers, collate_fn
        self.batch_size, self.batch_sampler = batch_size, batch_sampler
        if not use_shared_memory or not use_buffer_reader:
            note("DataLoader(use_shared_memory, use_buffer_reader)", "torch decides how to read.")
        self._iterable = isinstance(dataset, TorchIterable)
        self._check(shuffle)
        self._sampled(shuffle, drop_last)
        self._inner = self._made(
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=persistent_workers and num_workers > 0,
        )

    def _check(self, shuffle: bool) -> None:
        if not self.return_list and not self.feed_list and modes.is_static():
            raise ValueError(
                "DataLoader(return_list=False) gives feeds by name, and there is no feed_list; "
                "pass feed_list=[x, y], or return_list=True."
            )
        if self._iterable and (shuffle or self.batch_sampler is not None):
            raise ValueError(
                "DataLoader(): an IterableDataset has an order of its own; leave out "
                f"{'shuffle' if shuffle else 'batch_sampler'}."
            )

    def _sampled(self, shuffle: bool, drop_last: bool) -> None:
        if self.batch_sampler is not None or self._iterable or self.batch_size is None:
            return
        self.batch_sampler = BatchSampler(
            self.dataset, shuffle=shuffle, batch_size=self.batch_size, drop_last=drop_last
        )

    def _made(self, *, drop_last: bool, **options: Any) -> TorchLoader[Any]:
        batched = self.batch_sampler is not None or self.batch_size is not None
        default = default_collate_fn if batched else default_convert_fn
        options |= {
            "num_workers": self.num_workers,
            "collate_fn": _Collate(self.collate_fn or default),
        }
        if self.batch_sampler is not None:
            return TorchLoader(self.dataset, batch_sampler=self.batch_sampler, **options)
        if self.batch_size is None:
            return TorchLoader(self.dataset, batch_size=None, **options)
        return TorchLoader(self.dataset, batch_size=self.batch_size, drop_last=drop_last, **options)

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._inner:
            yield self._given(batch)

    def __call__(self) -> Iterator[Any]:
        """The same, for loops that call their loader."""
        return iter(self)

    def _given(self, batch: Any) -> Any:
        if isinstance(batch, dict):
            return batch if modes.is_static() else tensors_of(batch)
        values = list(batch) if isinstance(batch, (list, tuple)) else [batch]
        if self.return_list or not self.feed_list:
            given = _held(values) if modes.is_static() else tensors_of(values)
            return given if isinstance(batch, (list, tuple)) else given[0]
        names = [variable.name for variable in self.feed_list]
        program = program_of(self.feed_list[0])
        return [as_lod_tensors(fed(program, dict(zip(names, values, strict=True))))]


def _held(values: list[Any]) -> list[Any]:
    """Arrays as programs are fed with them."""
    return [LoDTensor(v) if _is_numbers(v) else v for v in values]


def _is_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"


__all__ = ["DataLoader", "default_collate_fn", "default_convert_fn", "get_worker_info"]
