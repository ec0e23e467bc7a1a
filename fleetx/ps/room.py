"""Where a server writes the rows of a reply: memory that the kernel can send without a copy."""

import contextlib
import mmap
import os

import numpy as np

from fleetx.ps.hashing import Array
from fleetx.ps.pipes import LARGE, Pipe


class Room:
    """Bytes that grow with the replies of one connection, and are used again for the next one.

    The kernel may still hold pages of a reply when ``send`` is back. So whoever asks must have read
    a reply before the next one is written, which is what asking for the next one says.
    """

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.bytes: Array = np.empty(LARGE, np.uint8)
        self._file: int | None = None

    def reserve(self, size: int) -> None:
        """Make room for at least so many bytes; what was there is gone."""
        if size <= len(self.bytes):
            return
        self.close()
        size += size // 4  # batches differ a little
        if not self._pipe.secure:
            with contextlib.suppress(AttributeError, OSError):  # not every system has it
                self._file = os.memfd_create("fleetx-reply")
                os.ftruncate(self._file, size)
                self.bytes = np.frombuffer(mmap.mmap(self._file, size), np.uint8)
                return
        self.close()
        self.bytes = np.empty(size, np.uint8)

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
            self._file = None
