"""What ``fleet.init(trackers=[...])`` takes."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Takes numbers by name; only that of worker 0 is used.

    Two more methods are called if they are there: ``begin()`` in ``fleet.init`` and ``close()`` at
    the end of the job.
    """

    def log(self, values: Mapping[str, float], step: int, /) -> Any:
        """Keep the numbers of one step."""
