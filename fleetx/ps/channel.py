"""A client's connection to one server, which comes back after the server did."""

import logging
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from fleetx.ps.frames import HEADER, REPLIES, Frame, Op, from_json, unpacked
from fleetx.ps.handshake import Claim, RefusedError, greet
from fleetx.ps.hashing import Array
from fleetx.ps.members import PeerLostError
from fleetx.ps.pipes import Bytes, Pipe

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that a server may be away before its workers give up."""
REFUSALS = 3
"""One may be a server that died in the middle of the greeting; three are a wrong token."""
GREETING = 5.0
"""Seconds that a server may take to say who it is."""
_PAUSE = 0.1

Receive = Callable[[Frame, Pipe], None]
"""Reads what follows the header of a reply."""

_ERRORS: dict[str, type[Exception]] = {
    "PeerLostError": PeerLostError,
    "TimeoutError": TimeoutError,
    "ValueError": ValueError,
}


@dataclass(frozen=True)
class Access:
    """How servers are reached: the secret, who we are, encryption, and how long to try."""

    token: bytes
    claim: Claim
    tls: ssl.SSLContext | None = None
    patience: float = PATIENCE


class Channel:
    """Requests are kept until they are answered, and sent again if the connection was lost."""

    def __init__(self, endpoint: str, access: Access) -> None:
        self.endpoint, self._access = endpoint, access
        host, _, port = endpoint.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._pipe: Pipe | None = None
        self._parts: tuple[Bytes | Array, ...] = ()
        self._seq = 0
        self._ended = False

    def next_seq(self) -> int:
        """The number of the next change."""
        self._seq += 1
        return self._seq

    def send(self, *parts: Bytes | Array) -> None:
        """Send a request; a failure shows, and is mended, when its answer is read."""
        self._parts = parts
        try:
            self._opened(time.monotonic() + self._access.patience).send(*parts)
        except RefusedError:
            raise
        except ConnectionError:
            self.close()

    def receive(self, read: Receive) -> Frame:
        """Read the answer to the last request."""
        deadline = time.monotonic() + self._access.patience
        while True:
            try:
                if self._pipe is None:
                    self._opened(deadline).send(*self._parts)
                return self._answer(read)
            except RefusedError:
                raise
            except ConnectionError as error:
                self.close()
                if self._ended or time.monotonic() > deadline:
                    raise ConnectionError(self._lost(error)) from error
                logger.info("%s: %s; trying again", self.endpoint, error)
                time.sleep(_PAUSE)

    def _answer(self, read: Receive) -> Frame:
        assert self._pipe is not None
        head = memoryview(bytearray(HEADER.size))
        self._pipe.read(head, idle=True)
        frame = unpacked(head, REPLIES)
        if frame.op == Op.ERROR:
            said = from_json(self._pipe.exactly(frame.body))
            kind = _ERRORS.get(str(said.get("error")), RuntimeError)
            raise kind(f"server {self.endpoint}: {said.get('text')}")
        read(frame, self._pipe)
        return frame

    def _opened(self, deadline: float) -> Pipe:
        refusals = 0
        while self._pipe is None:
            try:
                self._pipe = self._connect()
            except ssl.SSLCertVerificationError as error:
                raise RefusedError(
                    f"the certificate of server {self.endpoint} is not the one that is trusted "
                    f"({error}); set FLEETX_PS_CERT to the same file on both ends"
                ) from error
            except OSError as error:
                refusals += isinstance(error, RefusedError)
                if refusals == REFUSALS:
                    raise
                if self._ended or time.monotonic() > deadline:
                    raise ConnectionError(self._lost(error)) from error
                time.sleep(_PAUSE)
        if self._ended:
            self.close()
            raise ConnectionError(f"the connection to server {self.endpoint} was ended")
        return self._pipe

    def _connect(self) -> Pipe:
        hurry = min(GREETING, self._access.patience + 1)
        sock = socket.create_connection(self._address, timeout=hurry)
        try:
            if self._access.tls is not None:
                sock = self._access.tls.wrap_socket(sock, server_hostname=self._address[0])
            pipe = Pipe(sock, stall=hurry)
            greet(self._access.token, self._access.claim, pipe.exactly, pipe.send)
        except BaseException:
            sock.close()
            raise
        return Pipe(sock)

    def _lost(self, error: Exception) -> str:
        return (
            f"server {self.endpoint} did not answer for {self._access.patience:.0f} s ({error}); "
            "look at its log, and start it again if it is gone"
        )

    def end(self) -> None:
        """End the connection for good: whoever waits for an answer in another thread gives up."""
        self._ended = True
        if (pipe := self._pipe) is not None:
            pipe.close()

    def close(self) -> None:
        """End the connection."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
