"""``paddle.reader.decorator``: readers made of readers."""

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fleetx.compat.notes import note
from fleetx.static.run.readers import EOFException, ReadAhead

Reader = Callable[[], Iterable[Any]]


class ComposeNotAligned(ValueError):
    """Readers beside each other do not end together."""


def cache(reader: Reader) -> Reader:
    """Read once, and give the same samples from memory at each pass."""
    kept = tuple(reader())
    return lambda: iter(kept)


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """What a function makes of one sample of each reader."""
    return lambda: map(func, *(reader() for reader in readers))


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """Samples in a random order, within ``buf_size`` of them, by Python's random numbers."""

    def shuffled() -> Iterator[Any]:
        samples = iter(reader())
        while group := list(itertools.islice(samples, buf_size)):
            random.shuffle(group)
            yield from group

    return shuffled


def chain(*readers: Reader) -> Reader:
    """One reader behind the other."""
    return lambda: itertools.chain(*(reader() for reader in readers))


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """The fields of several readers beside each other; all must end together."""

    def fields(samples: Sequence[Any]) -> tuple[Any, ...]:
        parts = (sample if isinstance(sample, tuple) else (sample,) for sample in samples)
        return tuple(itertools.chain(*parts))

    def composed() -> Iterator[Any]:
        streams = [iter(reader()) for reader in readers]
        if not check_alignment:
            yield from map(lambda *samples: fields(samples), *streams)
            return
        end = object()
        for samples in itertools.zip_longest(*streams, fillvalue=end):
            if any(sample is end for sample in samples):
                raise ComposeNotAligned("outputs of readers are not aligned.")
            yield fields(samples)

    return composed


def buffered(reader: Reader, size: int) -> Reader:
    """A thread reads ahead, at most ``size`` samples."""

    def ahead() -> Iterator[Any]:
        reading = ReadAhead(reader(), max(int(size), 1))
        try:
            while True:
                yield reading.take()
        except EOFException:
            return
        finally:
            reading.stop()

    return ahead


def firstn(reader: Reader, n: int) -> Reader:
    """The first samples."""
    return lambda: itertools.islice(reader(), n)


def xmap_readers(
    mapper: Callable[[Any], Any],
    reader: Reader,
    process_num: int,
    buffer_size: int,
    order: bool = False,
) -> Reader:
    """What a function makes of each sample, computed by several threads ahead.

    Samples come in their order whether ``order`` asks for it or not.
    """

    def mapped() -> Iterator[Any]:
        with ThreadPoolExecutor(max(int(process_num), 1)) as pool:
            coming: deque[Future[Any]] = deque()
            for sample in reader():
                coming.append(pool.submit(mapper, sample))
                if len(coming) >= max(int(buffer_size), 1):
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    return mapped


def multiprocess_reader(
    readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000
) -> Reader:
    """Samples of several readers in turn, each read ahead by a thread."""
    if not readers:
        raise ValueError("multiprocess_reader() needs at least one reader.")
    note("multiprocess_reader", "threads read ahead; the samples are the same, taken in turn.")

    def in_turn() -> Iterator[Any]:
        streams = deque(iter(buffered(reader, queue_size)()) for reader in readers)
        while streams:
            stream = streams.popleft()
            try:
                sample = next(stream)
            except StopIteration:
                continue
            if sample is None:
                raise ValueError("sample has None")
            yield sample
            streams.append(stream)

    return in_turn
