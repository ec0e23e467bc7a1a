"""Feeding from a generator: a thread reads ahead while the program runs."""

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleetx.record.error import ProgramError
from fleetx.record.variable import as_variable
from fleetx.static.record.current import default_main_program
from fleetx.static.record.inputs import data

logger = logging.getLogger(__name__)

Generator = Callable[[], Iterable[Any]]
"""Called for every epoch."""


class EOFException(Exception):
    """A reader has no more batches: call ``reset()``, then ``start()`` for the next epoch."""


_END = object()


class ReadAhead:
    """One pass over batches, at most ``capacity`` ahead of whoever takes them."""

    def __init__(self, batches: Iterable[Any], capacity: int) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(capacity)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(batches,), daemon=True)
        self._thread.start()

    def _read(self, batches: Iterable[Any]) -> None:
        try:
            for batch in batches:
                if not self._put(batch):
                    return
            self._put(_END)
        except BaseException as error:
            self._put(error)

    def _put(self, item: Any) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def take(self) -> Any:
        """The next batch; raises ``EOFException`` behind the last, or what the generator raised."""
        item = self._queue.get()
        if item is _END or isinstance(item, BaseException):
            self._queue.put(item)  # nothing comes behind it, whoever asks again
        if item is _END:
            raise EOFException("the reader has no more batches; call reset(), then start() again.")
        if isinstance(item, BaseException):
            raise item
        return item

    def stop(self) -> None:
        """Give up the rest."""
        self._stopped.set()
        self._thread.join()


class GeneratorLoader:
    """Batches for a program from a generator that the user wrote."""

    def __init__(
        self, feed_list: Sequence[Tensor], *, capacity: int, iterable: bool, drop_last: bool
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a reader holds at least one batch, got capacity={capacity!r}")
        self.variables = [as_variable(entry, "feed_list") for entry in feed_list]
        self._names = [variable.name for variable in self.variables]
        self._dtypes = [variable.fake.dtype for variable in self.variables]
        self._shapes = [variable.node.meta["shape"] for variable in self.variables]
        self._capacity, self._iterable, self._drop_last = capacity, iterable, drop_last
        self._generator: Generator | None = None
        self._running: ReadAhead | None = None
        if not iterable:
            default_main_program().readers.append(self)

    def set_sample_generator(
        self, reader: Generator, batch_size: int, drop_last: bool | None = None, places: Any = None
    ) -> "GeneratorLoader":
        """Each item is one sample: a tuple with a value for every input."""
        drop = self._drop_last if drop_last is None else drop_last
        reader = _anew(reader, "set_sample_generator")

        def lists() -> Iterator[Any]:
            samples = iter(reader())
            while group := list(itertools.islice(samples, batch_size)):
                if len(group) == batch_size or not drop:
                    yield group

        return self.set_sample_list_generator(lists)

    def set_sample_list_generator(self, reader: Generator, places: Any = None) -> "GeneratorLoader":
        """Each item is a list of samples that make a batch."""
        reader = _anew(reader, "set_sample_list_generator")

        def batches() -> Iterator[Any]:
            for group in reader():
                columns = zip(*group, strict=True)
                yield [self._stacked(column, at) for at, column in enumerate(columns)]

        return self.set_batch_generator(batches)

    def set_batch_generator(self, reader: Generator, places: Any = None) -> "GeneratorLoader":
        """Each item is a batch: an array or tensor for every input."""
        self._generator = _anew(reader, "set_batch_generator")
        return self

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = set_sample_list_generator
    decorate_paddle_reader = set_sample_list_generator
    decorate_batch_generator = set_batch_generator
    decorate_tensor_provider = set_batch_generator

    def _stacked(self, column: Sequence[Any], at: int) -> np.ndarray:
        dtype = torch.empty(0, dtype=self._dtypes[at]).numpy().dtype
        found = np.stack([np.asarray(value, dtype=dtype) for value in column])
        # A sample may be flat where the input has a shape, or lack a last dimension of one.
        sizes = [-1 if size is None else size for size in self._shapes[at][1:]]
        return found.reshape(len(column), *sizes) if -1 not in sizes else found

    def _feeds(self) -> Iterator[dict[str, Any]]:
        if self._generator is None:
            raise ProgramError(
                "the reader has no generator; call set_batch_generator(), "
                "set_sample_list_generator() or set_sample_generator() first."
            )
        at = -1
        for at, batch in enumerate(self._generator()):  # noqa: B007
            if isinstance(batch, dict):
                yield batch
                continue
            values = [batch] if isinstance(batch, (np.ndarray, Tensor)) else list(batch)
            if len(values) != len(self._names):
                raise ProgramError(
                    f"the generator gave {len(values)} values, but the reader feeds "
                    f"{len(self._names)}: {', '.join(self._names)}."
                )
            yield dict(zip(self._names, values, strict=True))
        if at < 0:
            logger.warning(
                "the reader of %s gave no batch in this epoch: its generator ended at once, or had "
                "fewer samples than a batch and drop_last=True",
                ", ".join(self._names),
            )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Feeds of one epoch."""
        if not self._iterable:
            raise ProgramError(
                "a reader that is not iterable feeds its program by itself; call start(), then "
                "Executor.run() without feed, or make it with iterable=True."
            )
        ahead = ReadAhead(self._feeds(), self._capacity)
        try:
            while True:
                yield ahead.take()
        except EOFException:
            return
        finally:
            ahead.stop()

    def __call__(self) -> Iterator[dict[str, Any]]:
        """The same, for loops that call their loader."""
        return iter(self)

    def start(self) -> None:
        """Begin an epoch."""
        if self._iterable:
            raise ProgramError("an iterable loader is not started; write: for feed in loader.")
        if self._running is not None:
            raise ProgramError("the reader runs already; call reset() before start().")
        self._running = ReadAhead(self._feeds(), self._capacity)

    def reset(self) -> None:
        """End an epoch, whether it was finished or not."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    def next_feed(self) -> dict[str, Any]:
        """What the executor feeds next."""
        if self._running is None:
            raise ProgramError("the program has a reader that was not started; call start().")
        return self._running.take()  # type: ignore[no-any-return]


def _anew(reader: Generator, call: str) -> Generator:
    """The reader; refuses a generator that can be read once, for every epoch begins anew."""
    if not callable(reader):
        raise TypeError(
            f"{call}() takes a function that is called for every epoch, got {reader!r}, which can "
            f"be read once at best; pass the function that makes it, such as {call}(batches) for "
            "def batches(): yield ..."
        )
    read: list[Iterator[Any]] = []

    def epoch() -> Iterator[Any]:
        items, empty = iter(reader()), True
        for item in items:
            empty, read[:] = False, [items]
            yield item
        if empty and read and read[0] is items:
            raise ProgramError(
                f"the function given to {call}() returned the same generator for another epoch, "
                "and a generator can be read once, so the epoch would be empty; let the function "
                "make a new one at each call: def batches(): yield ..."
            )

    return epoch


class DataLoader:
    """``DataLoader.from_generator(feed_list=[x, y], capacity=16)``."""

    @staticmethod
    def from_generator(
        feed_list: Sequence[Tensor],
        capacity: int = 16,
        *,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        drop_last: bool = True,
    ) -> GeneratorLoader:
        """A loader that feeds these inputs.

        Args:
            feed_list: the inputs, in the order of the values of a batch.
            capacity: batches to read ahead.
            use_double_buffer: False reads one batch ahead, whatever the capacity is.
            iterable: give feeds to a loop; else the program takes them itself between ``start()``
                and ``EOFException``.
            return_list: refused, because lists have no names to be fed under.
            drop_last: leave out a last batch that is not full.
        """
        if return_list:
            raise ValueError(
                "DataLoader.from_generator(return_list=True) gives lists, but a program is fed by "
                "name; leave it False."
            )
        ahead = capacity if use_double_buffer else 1
        return GeneratorLoader(feed_list, capacity=ahead, iterable=iterable, drop_last=drop_last)


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int | None]],
    dtypes: Sequence[str],
    name: str | None = None,
    use_double_buffer: bool = True,
) -> GeneratorLoader:
    """A reader that declares its own inputs; ``read_file`` gives them.

    Args:
        capacity: batches to read ahead.
        shapes: of the inputs, None or -1 for the batch.
        dtypes: of the inputs.
        name: the beginning of their names.
        use_double_buffer: False reads one batch ahead.
    """
    program = default_main_program()
    stem = name or f"py_reader_{len(program.readers)}"
    pairs = zip(shapes, dtypes, strict=True)
    made = [data(f"{stem}_{at}", shape, dtype) for at, (shape, dtype) in enumerate(pairs)]
    ahead = capacity if use_double_buffer else 1
    return GeneratorLoader(made, capacity=ahead, iterable=False, drop_last=False)


def read_file(reader: GeneratorLoader) -> Any:
    """The inputs that a reader declared: one variable, or a list of them."""
    found = reader.variables
    return found[0] if len(found) == 1 else list(found)
