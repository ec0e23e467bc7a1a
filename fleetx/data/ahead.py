"""Work on batches that are needed soon, on a thread of its own."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

DEPTH = 2
"""Batches that are worked on, or wait, while another one is used."""


def done_ahead(
    work: Callable[[Any], Any], batches: Iterator[tuple[Any, T]]
) -> Iterator[tuple[Any, T]]:
    """The same batches, in the same order, with ``work`` done to each.

    Batches are asked for on the thread of whoever asks for the results: what a loader draws and
    agrees on with other workers stays in one thread. What goes wrong with a batch, in the loader or
    in the work, is raised in that batch's place.

    Args:
        work: what the thread does, to one batch after the other.
        batches: each with what is said of it.
    """
    waiting: deque[tuple[Future[Any], T]] = deque()
    failure: Exception | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="fleetx-ahead") as pool:
        try:
            while True:
                try:
                    batch, said = next(batches)
                except StopIteration:
                    break
                except Exception as error:  # raised below, in its place
                    failure = error
                    break
                waiting.append((pool.submit(work, batch), said))
                if len(waiting) > DEPTH:
                    yield _first(waiting)
            while waiting:
                yield _first(waiting)
        finally:
            for future, _ in waiting:
                future.cancel()
    if failure is not None:
        raise failure


def _first(waiting: deque[tuple[Future[Any], T]]) -> tuple[Any, T]:
    future, said = waiting.popleft()
    return future.result(), said
