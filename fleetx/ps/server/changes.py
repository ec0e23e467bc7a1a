"""A push, taken apart."""

from typing import NamedTuple

import numpy as np

from fleetx.ps.wire.arrays import Array, Floats, Ids


class Change(NamedTuple):
    """One push, taken apart."""

    ids: Ids
    values: Floats
    stats: Floats | None
    present: Array | None = None
    """Which blocks of a dense table have a gradient, in an array of its own; None: all."""

    def copied(self) -> "Change":
        """The same in arrays of its own: the next frame of a connection overwrites the buffer."""
        stats = None if self.stats is None else self.stats.copy()
        return Change(self.ids.copy(), self.values.copy(), stats, self.present)


def joined(changes: list[Change]) -> Change:
    """Pieces of one push, put together."""
    if len(changes) == 1:
        return changes[0]
    stats = [change.stats for change in changes if change.stats is not None]
    return Change(
        np.concatenate([change.ids for change in changes]),
        np.concatenate([change.values for change in changes]),
        np.concatenate(stats) if stats else None,
    )
