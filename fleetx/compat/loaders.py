"""Loaders over generators, in Paddle's words."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from fleetx.compat import lods, modes
from fleetx.compat.lod_tensors import LoDTensor
from fleetx.compat.notes import note
from fleetx.compat.paddle.device import current_device
from fleetx.compat.pipelined_programs import joined
from fleetx.compat.running import fed
from fleetx.compat.tensors import wrap
from fleetx.static.record.program import program_of
from fleetx.static.run import readers


class Feed(dict[str, Any]):
    """What a program is fed; also the list of one such dict, for the one card of the process."""

    def __missing__(self, key: Any) -> Any:
        if key == 0:
            return self
        raise KeyError(key)


def as_lod_tensors(feed: Mapping[str, Any]) -> dict[str, LoDTensor]:
    """A feed in which values are ``LoDTensor``, those that have sequences with their lengths."""
    found = {}
    for name, value in feed.items():
        begins = feed.get(lods.companion(name))
        lod = None if begins is None else [[*(int(n) for n in begins), len(value)]]
        found[name] = LoDTensor(value, lod)
    extra = {lods.companion(name) for name in feed}
    return {name: value for name, value in found.items() if name not in extra}


class GeneratorLoader(readers.GeneratorLoader):
    """Feeds a program, or gives a loop what to feed."""

    def __init__(
        self,
        feed_list: Sequence[Any],
        *,
        capacity: int = 16,
        iterable: bool = True,
        drop_last: bool = True,
        return_list: bool = False,
    ) -> None:
        super().__init__(feed_list, capacity=capacity, iterable=iterable, drop_last=drop_last)
        self._program = program_of(self.variables[0])
        self._as_list = return_list
        inputs = self._program.inputs()
        self._ragged = [lods.companion(name) in inputs for name in self._names]
        self.queue = self

    @override
    def _stacked(self, column: Sequence[Any], at: int) -> Any:
        if self._ragged[at]:
            return [np.atleast_1d(np.asarray(value)) for value in column]
        return super()._stacked(column, at)

    @override
    def _feeds(self) -> Iterator[dict[str, Any]]:
        feeds: Iterator[Any] = super()._feeds()
        if not self._iterable and not any(self._ragged):
            feeds = joined(self._program, feeds)
        for feed in feeds:
            yield Feed(fed(self._program, feed))

    @override
    def __iter__(self) -> Iterator[Any]:
        for feed in super().__iter__():
            shown = as_lod_tensors(feed)
            yield [shown[name] for name in self._names] if self._as_list else [shown]

    @override
    def set_batch_generator(self, reader: Any, places: Any = None) -> "GeneratorLoader":
        super().set_batch_generator(reader, places)
        return self

    decorate_batch_generator = set_batch_generator
    decorate_tensor_provider = set_batch_generator

    def size(self) -> int:
        """How many batches wait; they are read as they are needed."""
        return 0


class EagerLoader:
    """Gives a loop batches of tensors."""

    def __init__(self, *, drop_last: bool) -> None:
        self._drop_last = drop_last
        self._batches: Callable[[], Iterable[Any]] | None = None

    def set_sample_generator(
        self, reader: Any, batch_size: int, drop_last: bool | None = None, places: Any = None
    ) -> "EagerLoader":
        """Each item is one sample."""
        drop = self._drop_last if drop_last is None else drop_last

        def lists() -> Iterator[Any]:
            samples = iter(reader())
            while group := list(islice(samples, batch_size)):
                if len(group) == batch_size or not drop:
                    yield group

        return self.set_sample_list_generator(lists)

    def set_sample_list_generator(self, reader: Any, places: Any = None) -> "EagerLoader":
        """Each item is a list of samples that make a batch."""

        def batches() -> Iterator[Any]:
            for group in reader():
                yield [np.stack([np.asarray(v) for v in c]) for c in zip(*group, strict=True)]

        return self.set_batch_generator(batches)

    def set_batch_generator(self, reader: Any, places: Any = None) -> "EagerLoader":
        """Each item is a batch: an array or tensor for every input."""
        self._batches = reader
        return self

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = decorate_paddle_reader = set_sample_list_generator
    decorate_batch_generator = decorate_tensor_provider = set_batch_generator

    def __iter__(self) -> Iterator[Any]:
        if self._batches is None:
            raise RuntimeError("the loader has no generator; call set_batch_generator() first.")
        for batch in self._batches():
            yield tensors_of(batch if isinstance(batch, (list, tuple)) else [batch])

    def __call__(self) -> Iterator[Any]:
        """The same, for loops that call their loader."""
        return iter(self)


def tensors_of(batch: Any) -> Any:
    """A batch as tensors of eager mode on its device, in lists and dicts as it is."""
    if isinstance(batch, dict):
        return {key: tensors_of(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [tensors_of(value) for value in batch]
    if isinstance(batch, LoDTensor):
        return tensors_of(batch.tensor())
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "biuf":
        return tensors_of(torch.as_tensor(np.ascontiguousarray(batch)))
    return wrap(batch.to(current_device()) if isinstance(batch, torch.Tensor) else batch)


def from_generator(  # noqa: PLR0917 (the order of Paddle)
    feed_list: Sequence[Any] | None = None,
    capacity: int | None = None,
    use_double_buffer: bool = True,
    iterable: bool = True,
    return_list: bool = False,
    use_multiprocess: bool = False,
    drop_last: bool = True,
) -> Any:
    """A loader that takes its batches from a generator.

    Args:
        feed_list: the inputs, in the order of the values of a batch; none in eager mode.
        capacity: batches to read ahead.
        use_double_buffer: False reads one batch ahead.
        iterable: give feeds to a loop; else the program takes them between ``start()`` and
            ``core.EOFException``.
        return_list: lists instead of dicts.
        use_multiprocess: a thread reads ahead instead, and gives the same batches.
        drop_last: leave out a last batch that is not full, of samples.
    """
    if use_multiprocess:
        note("DataLoader(use_multiprocess=True)", "a thread reads ahead; batches are the same.")
    if not feed_list:
        if modes.is_static():
            raise ValueError(
                "DataLoader.from_generator() has no feed_list, and a program is fed by name; pass "
                "feed_list=[x, y]."
            )
        return EagerLoader(drop_last=drop_last)
    ahead = int(capacity or 16) if use_double_buffer else 1
    return GeneratorLoader(
        feed_list, capacity=ahead, iterable=iterable, drop_last=drop_last, return_list=return_list
    )


def from_dataset(dataset: Any, places: Any = None, drop_last: bool = True) -> Iterator[Any]:
    """The batches of a slot data set, as feeds."""
    for batch in dataset:
        found = Feed()
        for name, slot in batch.items():
            found |= {name: slot.values, lods.companion(name): slot.offsets}
        yield found


class PyReader(GeneratorLoader):
    """``fluid.io.PyReader``: the loader of Paddle 1.5."""

    def __new__(cls, feed_list: Sequence[Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Without inputs, one of eager mode."""
        return super().__new__(cls) if feed_list else EagerLoader(drop_last=False)

    def __init__(
        self,
        feed_list: Sequence[Any] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        """The same as ``DataLoader.from_generator``, which keeps a last batch that is not full."""
        super().__init__(
            feed_list or [],
            capacity=int(capacity or 16) if use_double_buffer else 1,
            iterable=iterable,
            drop_last=False,
            return_list=return_list,
        )
