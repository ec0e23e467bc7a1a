"""Rows in one block of memory that grows without being copied."""

import contextlib
import mmap
import sys

import numpy as np
from numpy.typing import DTypeLike

from fleetx.ps.wire.arrays import Array

GRANULE = 2 << 20
"""The size of a huge page: smaller steps would only make the kernel split them."""


class Arena:
    """A two-dimensional array over anonymous memory; only touched pages cost anything."""

    def __init__(self, width: int, dtype: DTypeLike, rows: int = 0) -> None:
        self._width, self._dtype = width, np.dtype(dtype)
        self._map = _anonymous_memory(self._byte_size(rows))
        self._advise()
        self.array: Array = self._view()

    @property
    def rows(self) -> int:
        """How many rows there is room for."""
        return len(self.array)

    def reserve(self, rows: int) -> None:
        """Make room for at least so many rows; views of ``array`` must be gone."""
        if rows <= self.rows:
            return
        size = self._byte_size(rows + rows // 4)
        # Resizing may move the memory, so the view must be gone first. Were there another one,
        # ``resize`` would raise BufferError and not leave it behind in memory that is not ours.
        self.array = np.empty((0, self._width), self._dtype)
        if sys.platform == "linux":
            self._map.resize(size)  # moves page tables, not bytes
        else:
            self._copy(size)
        self._advise()
        self.array = self._view()

    def _byte_size(self, rows: int) -> int:
        wanted = max(rows, 1) * max(self._width, 1) * self._dtype.itemsize
        return -(-wanted // GRANULE) * GRANULE

    def _advise(self) -> None:
        """Ask for huge pages: random rows of a large table miss the address cache far less."""
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel built without them
                self._map.madvise(mmap.MADV_HUGEPAGE)

    def _copy(self, size: int) -> None:
        old = self._map
        self._map = _anonymous_memory(size)
        self._map[: len(old)] = old[:]

    def _view(self) -> Array:
        rows = len(self._map) // (max(self._width, 1) * self._dtype.itemsize)
        flat = np.frombuffer(self._map, self._dtype, rows * self._width)
        return flat.reshape(rows, self._width)


def _anonymous_memory(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
