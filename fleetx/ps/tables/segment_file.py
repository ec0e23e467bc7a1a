"""Segments in a file of LMDB: blocks of one size, by number.

The file has no name as soon as it is open: it ends with the process, however that ends. Nothing in
it is believed after a death, for the log and the save behind it know all rows; so it need not wait
for the disk either.
"""

import contextlib
import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps.wire.arrays import Ids

MOST_BYTES = 1 << 40
"""The addresses that the file may take, not its size."""
GROWTH = 64 << 20
"""Bytes of the disk that are asked for at once."""
SPARE = 1024
"""Pages that a change may take beside those of its segments."""


_advise = ctypes.CDLL(None).madvise
_advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class SegmentFile:
    """Keeps segments; whoever knows where one begins reads it in the map of the file.

    A block of more than a page has pages of its own. LMDB neither writes to a page that is in use
    nor moves it, so such a block stays where it is until it is deleted; and all blocks have one
    size, so that one takes the place of another. Pages are written to the file and not in its map:
    those of a new block need not be read first, and a disk without room is an error.
    """

    def __init__(self, folder: Path | None, segment_bytes: int) -> None:
        self._folder, self._lmdb = folder, _lmdb()
        with tempfile.TemporaryDirectory(prefix="cold-", dir=folder) as place:
            self._file = self._lmdb.open(
                f"{place}/rows",
                map_size=MOST_BYTES,
                subdir=False,
                lock=False,  # no other process could find it
                sync=False,
                metasync=False,
                readahead=False,  # rows are asked for here and there
                max_readers=1,
                max_dbs=1,
            )
            self._blocks = os.open(f"{place}/rows", os.O_RDWR)
        self._table = self._file.open_db(b"segments", integerkey=True)
        self._page = int(self._file.stat()["psize"])
        assert segment_bytes >= self._page, "else it would share a page, and move"
        self._pages = -(-segment_bytes // self._page) + 1  # one more for what LMDB notes
        self._allocated = 0

    def reserve(self, segments: int) -> None:
        """Have room on the disk for so many more before anything is changed.

        Raises:
            OSError: if there is none.
        """
        end = self.nbytes + (segments * self._pages + SPARE) * self._page
        if end > self._allocated:
            more = max(end - self._allocated, GROWTH)
            try:
                os.posix_fallocate(self._blocks, self._allocated, more)
            except OSError as error:
                where = self._folder or tempfile.gettempdir()
                what = f"{error.strerror}: rows cannot be kept on the disk of {where}"
                text = f"{what}, which would take {more:,} bytes more"
                raise OSError(error.errno, text) from error
            self._allocated += more

    def put(self, number: int, words: Ids, gone: Iterable[int]) -> int:
        """Keep a segment, for which there is room, and delete others; returns its address."""
        with self._errors():
            with self._file.begin(self._table, write=True) as transaction:
                transaction.put(_key(number), words.data.cast("B"))
                for each in gone:
                    transaction.delete(_key(each))
            with self._file.begin(self._table, buffers=True) as transaction:
                kept = np.frombuffer(transaction.get(_key(number)), np.int64)
                return int(kept.__array_interface__["data"][0])

    def ask_for(self, address: int) -> None:
        """Let the disk read a segment before it is needed, where that is not in memory."""
        begin = address & -self._page
        _advise(begin, self._pages * self._page, mmap.MADV_WILLNEED)

    def clear(self) -> None:
        """Delete all."""
        with self._errors(), self._file.begin(self._table, write=True) as transaction:
            transaction.drop(self._table, delete=False)

    @property
    def nbytes(self) -> int:
        """How long the file is."""
        return int((self._file.info()["last_pgno"] + 1) * self._page)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """A disk that is full is what callers know as an ``OSError``."""
        try:
            yield
        except self._lmdb.Error as error:
            raise OSError(f"rows cannot be kept on the disk ({error})") from error


def _key(number: int) -> bytes:
    return number.to_bytes(8, sys.byteorder)


def _lmdb() -> Any:
    try:
        import lmdb
    except ImportError:
        raise ValueError(
            "storage='disk' keeps rows in LMDB, and this server has no package lmdb; install it "
            "where servers run (pip install fleetx[ps]), or take storage='memory'"
        ) from None
    return lmdb
