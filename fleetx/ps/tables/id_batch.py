"""The ids that one request asks for, sorted by the server that holds them."""

from dataclasses import dataclass

import numpy as np

from fleetx.ps.tables import kernels
from fleetx.ps.wire.arrays import Array, Ids


@dataclass(frozen=True)
class IdBatch:
    """Ids, each once, sorted by server."""

    ids: Ids
    begins: Ids
    """Where those of each server begin; one more entry for the end."""
    place: Ids
    """Where each of the ids that were given went."""
    in_order: bool = False
    """Known to be the ids that were given, each once and at its place."""

    @staticmethod
    def of(ids: Array, servers: int) -> "IdBatch":
        """Sort out ids of any shape."""
        flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
        once, begins, place = kernels.active.dedupe(flat, servers)
        return IdBatch(once, begins, place, in_order=servers == 1 and len(once) == len(flat))
