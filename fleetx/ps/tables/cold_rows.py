"""Rows that are not in memory: records in a file of LMDB, in the order of the hashes of their ids.

The file has no name as soon as it is open: it ends with the process, however that ends. Nothing in
it is believed after a death, for the log and the save behind it know all rows; so it need not wait
for the disk either.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps.tables.hashing import mixed
from fleetx.ps.wire.arrays import Array, Ids

MOST_BYTES = 1 << 40
"""The addresses that the file may take, not its size."""
GROWTH = 64 << 20
"""Bytes of the disk that are asked for at once."""
SPARE = 1024
"""Pages that a change may take beside those of its records."""


class NoRoomError(OSError):
    """A disk is full; nothing was changed, and once there is room it can be asked again."""


class ColdRows:
    """Records by id; each begins with the field ``id``."""

    def __init__(self, folder: Path | None, record: np.dtype[np.void]) -> None:
        self._record, self._folder, self._lmdb = record, folder, _lmdb()
        with tempfile.TemporaryDirectory(prefix="cold-", dir=folder) as place:
            self._file = self._lmdb.open(
                f"{place}/rows",
                map_size=MOST_BYTES,
                subdir=False,
                lock=False,  # no other process could find it
                sync=False,
                metasync=False,
                writemap=True,  # half of the cost of a record
                map_async=True,
                readahead=False,  # rows are asked for here and there
                max_readers=1,
                max_dbs=1,
            )
            self._blocks = os.open(f"{place}/rows", os.O_RDWR)
        # Keys that LMDB compares as numbers take a third less to find than those that are bytes.
        self._table = self._file.open_db(b"rows", integerkey=True)
        self._page = int(self._file.stat()["psize"])
        self._allocated = 0

    def reserve(self, records: int) -> None:
        """Have room on the disk for a change of so many records before it is made.

        A page of the map for which there is none would end the process when it is written.

        Raises:
            NoRoomError: if there is none.
        """
        end = self.nbytes + (2 * records + SPARE) * self._page
        if end > self._allocated:
            more = max(end - self._allocated, GROWTH)
            try:
                os.posix_fallocate(self._blocks, self._allocated, more)
            except OSError as error:
                where = self._folder or tempfile.gettempdir()
                what = f"{error.strerror}: rows cannot be kept on the disk of {where}"
                raise NoRoomError(
                    error.errno, f"{what}, which would take {more:,} bytes more"
                ) from error
            self._allocated += more

    def put(self, records: Array) -> None:
        """Keep records, in the place of those of the same ids."""
        keys = _keys(records["id"])
        order = np.argsort(keys)  # neighbours share pages
        values = records[order].view(np.dtype((np.void, self._record.itemsize)))
        self.reserve(len(records))
        with self._errors(), self._begin(write=True) as transaction:
            pairs = zip(_names(keys[order]), values.tolist(), strict=True)
            transaction.cursor().putmulti(pairs)

    def find(self, ids: Ids) -> Array:
        """The records of those ids that have one, in no order."""
        if not len(self):
            return np.empty(0, self._record)
        with self._errors(), self._begin() as transaction:
            # One by one, for ``getmulti`` makes pairs with the keys, a quarter of its time.
            found = map(transaction.get, _names(np.sort(_keys(ids))))
            return np.frombuffer(b"".join(filter(None, found)), self._record)

    def part(self, number: int, bits: int) -> Array:
        """The records in one of ``2**bits`` equal parts of the hash range."""
        size = 1 << (64 - bits)
        end = (number + 1) * size
        with self._errors(), self._begin() as transaction:
            cursor = transaction.cursor()
            values: list[bytes] = []
            if cursor.set_range((number * size).to_bytes(8, sys.byteorder)):
                for key, value in cursor:
                    if int.from_bytes(key, sys.byteorder) >= end:
                        break
                    values.append(value)
            return np.frombuffer(b"".join(values), self._record)

    def delete(self, ids: Ids) -> int:
        """Forget records; returns how many there were."""
        self.reserve(len(ids))
        with self._errors(), self._begin(write=True) as transaction:
            return sum(map(transaction.delete, _names(np.sort(_keys(ids)))))

    def clear(self) -> None:
        """Forget all records."""
        self.reserve(len(self))
        with self._errors(), self._begin(write=True) as transaction:
            transaction.drop(self._table, delete=False)

    def __len__(self) -> int:
        with self._begin() as transaction:
            entries: int = transaction.stat(self._table)["entries"]
        return entries

    @property
    def nbytes(self) -> int:
        """How long the file is."""
        return int((self._file.info()["last_pgno"] + 1) * self._file.stat()["psize"])

    def _begin(self, *, write: bool = False) -> Any:
        return self._file.begin(self._table, write=write)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """A disk that is full is what callers know as an ``OSError``."""
        try:
            yield
        except self._lmdb.Error as error:
            raise OSError(f"rows cannot be kept on the disk ({error})") from error


def _keys(ids: Ids) -> Array:
    """The hashes, by which records are in order."""
    return mixed(ids)


def _names(keys: Array) -> list[bytes]:
    names: list[bytes] = keys.view("V8").tolist()
    return names


def _lmdb() -> Any:
    try:
        import lmdb
    except ImportError:
        raise ValueError(
            "storage='disk' keeps rows in LMDB, and this server has no package lmdb; install it "
            "where servers run (pip install fleetx[ps]), or take storage='memory'"
        ) from None
    return lmdb
