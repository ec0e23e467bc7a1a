"""What somebody who is no worker asks one server."""

import secrets
import ssl

import numpy as np

from fleetx.ps.wire.arrays import Floats, Ids
from fleetx.ps.wire.channel import Access, Channel, Fill
from fleetx.ps.wire.frames import VERSION_BYTES, Flag, Frame, Op
from fleetx.ps.wire.handshake import OBSERVER, Claim
from fleetx.ps.wire.messages import Message, from_json, to_json
from fleetx.ps.wire.pipes import byte_view
from fleetx.ps.wire.versions import Version

PATIENCE = 1.0
"""Seconds after which a server that cannot be reached is left alone for now."""
ANSWER_TIMEOUT = 30.0
"""Seconds in which an answer must begin: nothing that is asked here waits for workers."""


def observing(token: bytes, tls: ssl.SSLContext | None = None) -> Access:
    """How servers are reached by somebody who only looks."""
    return Access(
        token, Claim(OBSERVER, secrets.randbits(63)), tls, patience=PATIENCE, shared_memory=False
    )


class ServerReader:
    """One connection, for one thread."""

    def __init__(self, endpoint: str, access: Access) -> None:
        self.endpoint = endpoint
        self._channel = Channel(endpoint, access, answer_timeout=ANSWER_TIMEOUT)

    def call(self, message: Message) -> Message:
        """One of the rare requests."""
        data, found = to_json(message), bytearray()

        def read(frame: Frame, fill: Fill) -> None:
            found.extend(bytes(frame.body))
            fill(memoryview(found))

        self._channel.send(Frame(Op.CALL, body=len(data)), data)
        self._channel.receive(read)
        return from_json(found)

    def changes(self, table: int, since: Version) -> tuple[Version, Ids | None]:
        """The version of now, and the ids of rows that changed or went; None if any may have."""
        head, ids = bytearray(VERSION_BYTES), np.empty(0, np.int64)

        def read(frame: Frame, fill: Fill) -> None:
            nonlocal ids
            ids = np.empty(frame.count, np.int64)
            fill(memoryview(head))
            if frame.count:
                fill(byte_view(ids))

        self._channel.send(Frame(Op.FOLLOW, table, body=VERSION_BYTES), since.packed())
        reply = self._channel.receive(read)
        return Version.unpacked(head), None if reply.flags & Flag.ALL else ids

    def fetch(self, table: int, ids: Ids) -> tuple[Ids, Floats]:
        """Those of the ids that have a row, and the rows."""
        return self._found(Frame(Op.FETCH, table, count=len(ids), body=ids.nbytes), ids)

    def scan(self, table: int, number: int, bits: int) -> tuple[Ids, Floats]:
        """All ids of one part of a table, and their rows."""
        return self._found(Frame(Op.SCAN, table, step=number, width=bits))

    def _found(self, request: Frame, *body: Ids) -> tuple[Ids, Floats]:
        ids, rows = np.empty(0, np.int64), np.empty((0, 0), np.float32)

        def read(frame: Frame, fill: Fill) -> None:
            nonlocal ids, rows
            ids = np.empty(frame.count, np.int64)
            rows = np.empty((frame.count, frame.width), np.float32)
            if frame.count:
                fill(byte_view(ids))
                fill(byte_view(rows))

        self._channel.send(request, *body)
        self._channel.receive(read)
        return ids, rows

    def read(self, table: int) -> tuple[Floats, int]:
        """All values of a dense table, and its version."""
        values = np.empty(0, np.float32)

        def take(frame: Frame, fill: Fill) -> None:
            nonlocal values
            values = np.empty(frame.count, np.float32)
            if frame.count:
                fill(byte_view(values))

        self._channel.send(Frame(Op.READ, table))
        reply = self._channel.receive(take)
        return values, reply.step

    def end(self) -> None:
        """End the connection, also under a thread that waits for an answer."""
        self._channel.end()

    def close(self) -> None:
        """End the connection; the next request opens another one."""
        self._channel.close()
