"""Who writes which tensor, where several workers have the same."""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from torch import Tensor

from fleetx.io.run_state import Entry

DATA = ("dp", "sharding")
AXES = (*DATA, "tp")
"""Along these, workers may have the same; stages of a pipeline have others."""


class Division:
    """Deals tensors out so that each worker has about as many bytes to copy and to write.

    Workers that have the same tensors see them in the same order, so each finds by itself what all
    others find.
    """

    def __init__(self, place: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        self._place, self._sizes = place, sizes
        self._loads: dict[tuple[str, ...], list[int]] = {}

    def mine(self, entries: Iterable[Entry]) -> list[Entry]:
        """Those that this worker writes."""
        return [entry for entry in entries if self._is_mine(entry)]

    def _is_mine(self, entry: Entry) -> bool:
        away = _spread_along(entry.tensor) | (set(DATA) if entry.key.how else set())
        axes = tuple(axis for axis in AXES if axis not in away)
        loads = self._loads.setdefault(axes, [0] * prod(self._sizes[axis] for axis in axes))
        writer = loads.index(min(loads))
        loads[writer] += entry.tensor.numel() * entry.tensor.element_size()
        mine = 0
        for axis in axes:
            mine = mine * self._sizes[axis] + self._place[axis]
        return writer == mine


def _spread_along(tensor: Tensor) -> set[str]:
    spread: Any = tensor
    if not hasattr(spread, "placements"):
        return set()
    named = zip(spread.device_mesh.mesh_dim_names, spread.placements, strict=True)
    return {axis for axis, placement in named if not placement.is_replicate()}
