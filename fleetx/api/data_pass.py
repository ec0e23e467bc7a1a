"""A pass over data: every batch once, and then all workers of a job with servers meet."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from fleetx.api import servers
from fleetx.expected import FUNCTION, ITERABLE, WHOLE, takes

Batch = TypeVar("Batch")


@takes(
    "train_from_dataset",
    batches=ITERABLE.such_as("a fleet.InMemoryDataset, or an iterable of batches, as dataset"),
    step=FUNCTION.such_as("a function of one batch"),
    ahead=FUNCTION.such_as("a function of one batch") | None,
    report=FUNCTION.such_as("a function of a number and of what step returned") | None,
    print_period=WHOLE,
)
def train_through(
    batches: Iterable[Batch],
    step: Callable[[Batch], Any],
    *,
    ahead: Callable[[Batch], None] | None = None,
    report: Callable[[int, Any], None] | None = None,
    print_period: int = 100,
) -> int:
    """Take a step with every batch; returns how many there were.

    Args:
        batches: in the order in which they are taken.
        step: trains on one batch and returns what shall be reported.
        ahead: is shown each batch before the one in front of it is trained.
        report: is told the number of a batch and what ``step`` returned.
        print_period: how often.
    """
    if print_period < 1:
        raise ValueError(f"print_period={print_period} reports after no batch; pass 1 or more")
    count = 0
    for batch in _one_ahead(batches, ahead):
        found = step(batch)
        count += 1
        if report is not None and count % print_period == 0:
            report(count, found)
    servers.settle_workers()
    return count


def _one_ahead(batches: Iterable[Batch], show: Callable[[Batch], None] | None) -> Iterator[Batch]:
    waiting: list[Batch] = []
    for batch in batches:
        if waiting and show is not None:
            show(batch)
        yield from waiting
        waiting = [batch]
    yield from waiting
