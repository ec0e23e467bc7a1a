"""Where a server writes the rows of a reply: memory that need not be copied to be sent."""

import contextlib
import mmap
import os
import secrets

import numpy as np

from fleetx.ps.wire.arrays import Array
from fleetx.ps.wire.pipes import LARGE, Pipe

NAME = "fleetx-reply"
MARK = 8
"""Random bytes at the beginning, by which a client on this host knows that it has the right one."""
ROWS_AT = 64
"""Where rows begin: behind the mark and a header, at the beginning of a cache line."""


class SharedReplyWriter:
    """Bytes that grow with the replies of one connection, and are used again for the next one.

    The kernel or the client may still read a reply when ``send`` is back. So whoever asks must have
    read a reply before the next one is written, which is what asking for the next one says.
    """

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.bytes: Array = np.empty(LARGE, np.uint8)
        self._file: int | None = None
        self._mark = b""

    def reserve(self, size: int) -> None:
        """Make room for at least so many bytes; what was there is gone."""
        if size > len(self.bytes):
            self._grow(size + size // 4)  # batches differ a little

    def _grow(self, size: int) -> None:
        if not self._pipe.secure:
            with contextlib.suppress(AttributeError, OSError):  # not every system has it
                if self._file is None:
                    self._file = os.memfd_create(NAME)
                # It only ever grows, because the kernel kills a client that reads behind the end of
                # a file that was cut. Nor is it made anew: the client knows this one by its mark.
                os.ftruncate(self._file, size)
                self.bytes = np.frombuffer(mmap.mmap(self._file, size), np.uint8)
                return
        self.close()
        self.bytes = np.empty(size, np.uint8)

    def offer(self) -> dict[str, int | str]:
        """Where a client on this host finds these bytes; it reads rows there."""
        if self._file is None:
            self._grow(len(self.bytes))
        if self._file is None:
            return {}
        self._mark = secrets.token_bytes(MARK)
        self.bytes[:MARK] = np.frombuffer(self._mark, np.uint8)
        return {"process": os.getpid(), "file": self._file, "mark": self._mark.hex()}

    @property
    def offered(self) -> bool:
        """Whether the client reads rows in this memory, and many of them need not be sent."""
        return self._mark != b""

    def send(self, begin: int, end: int) -> None:
        """Send the bytes in between."""
        if self._file is None or end - begin <= LARGE:
            self._pipe.send(self.bytes[begin:end])
        else:
            self._pipe.send_file(self._file, begin, end)

    def close(self) -> None:
        """Give the memory back."""
        self.bytes = np.empty(0, np.uint8)
        if self._file is not None:
            os.close(self._file)
            self._file, self._mark = None, b""
