"""The memory in which a server on the same host writes rows, as its client sees it."""

import mmap
import os

import numpy as np

from fleetx.ps.wire.arrays import Array
from fleetx.ps.wire.frames import HEADER, REPLIES, Frame, Op, unpacked
from fleetx.ps.wire.messages import from_json
from fleetx.ps.wire.pipes import Pipe
from fleetx.ps.wire.shared_memory_server import MARK, NAME, ROWS_AT


class SharedMemoryError(ConnectionError):
    """The memory of a server cannot be seen from here; it has to send its rows."""


class SharedReplyReader:
    """Rows are copied from where the server wrote them, and pass through no socket."""

    def __init__(self, process: int, file: int, mark: str) -> None:
        """Look at a server's memory.

        Args:
            process: the number of the server, as it knows itself.
            file: the descriptor of the memory there.
            mark: what must be found at its beginning: a server in another container may bear the
                number of some process here.
        """
        path = f"/proc/{process}/fd/{file}"
        try:
            # Before it is opened: to open a pipe or a terminal of a stranger does things to it.
            if not os.readlink(path).startswith(f"/memfd:{NAME}"):
                raise SharedMemoryError(f"{path} is something else")
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with the connection
        except OSError as error:
            raise SharedMemoryError(str(error)) from error
        self._bytes: Array = np.empty(0, np.uint8)
        if self._file.read(MARK).hex() != mark:
            self.close()
            raise SharedMemoryError(f"{path} belongs to another connection")

    def read(self, view: memoryview) -> None:
        """Copy the rows of a reply."""
        end = ROWS_AT + len(view)
        if end > len(self._bytes):
            self._bytes = self._mapped(end)
        # The server writes there again only when it is asked for more, which comes after this.
        np.copyto(np.frombuffer(view, np.uint8), self._bytes[ROWS_AT:end])

    def _mapped(self, size: int) -> Array:
        file = self._file.fileno()
        # A mapping may be longer than its file, and to read there would end this process.
        size_there = os.fstat(file).st_size
        if size_there < size:
            raise SharedMemoryError(f"{size} bytes are not in the {size_there} that it has")
        try:
            return np.frombuffer(mmap.mmap(file, size_there, prot=mmap.PROT_READ), np.uint8)
        except OSError as error:  # too many files are open, or there is too little memory
            raise SharedMemoryError(str(error)) from error

    def close(self) -> None:
        """Look away."""
        self._bytes = np.empty(0, np.uint8)
        self._file.close()


def opened(pipe: Pipe) -> SharedReplyReader | None:
    """Ask a server for its memory; None if it is on another host or has no such memory."""
    if pipe.socket.getsockname()[0] != pipe.socket.getpeername()[0]:
        return None
    pipe.send(Frame(Op.SHARED_MEMORY).packed())
    head = unpacked(pipe.read_exactly(HEADER.size), REPLIES)
    place = from_json(pipe.read_exactly(head.body))
    if head.op != Op.ANSWER:
        raise SharedMemoryError(f"the server does not offer it ({place.get('text')})")
    return SharedReplyReader(place["process"], place["file"], place["mark"]) if place else None
