"""``paddle.fluid.contrib.reader``."""

from collections.abc import Callable, Iterator
from typing import Any

from fleetx import roles
from fleetx.compat.worlds import rank, world_size

Reader = Callable[[], Iterator[Any]]


def distributed_batch_reader(batch_reader: Reader) -> Reader:
    """Deal batches out: each worker gets every n-th one, and all get equally many."""

    def own() -> Iterator[Any]:
        count = roles.worker_num() if roles.started() else world_size()
        mine: Any = None
        for number, batch in enumerate(batch_reader()):
            if number % count == rank():
                mine = (batch,)
            if number % count == count - 1 and mine is not None:
                yield mine[0]

    return own
