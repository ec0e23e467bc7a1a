"""A client's connection to one server, which comes back after the server did."""

import contextlib
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fleetx.ps.wire.arrays import Array
from fleetx.ps.wire.errors import PeerLostError
from fleetx.ps.wire.frames import (
    HEADER,
    REPLIES,
    REQUESTS,
    BadFrameError,
    Flag,
    Frame,
    Op,
    checked,
    name_of,
    unpacked,
)
from fleetx.ps.wire.handshake import Claim, EncryptionError, RefusedError, greet
from fleetx.ps.wire.messages import from_json
from fleetx.ps.wire.pipes import STALL, Bytes, Pipe
from fleetx.ps.wire.shared_memory_client import SharedMemoryError, SharedReplyReader, opened

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that a server may be away before its workers give up."""
REFUSALS = 3
"""One may be a server that died in the middle of the greeting; three are a wrong token."""
GREETING = 5.0
"""Seconds that a server may take to say who it is."""
_PAUSE = 0.1

Fill = Callable[[memoryview], None]
"""Reads as many bytes as there is room for."""
Receive = Callable[[Frame, Fill], None]
"""Takes the header of a reply and reads what belongs to it."""

_REPLY = {
    Op.PULL: Op.ROWS,
    Op.PUSH: Op.DONE,
    Op.READ: Op.VALUES,
    Op.WRITE: Op.DONE,
    Op.CALL: Op.ANSWER,
    Op.CHANGED_IDS: Op.IDS,
    Op.FOLLOW: Op.CHANGES,
    Op.FETCH: Op.FOUND,
    Op.SCAN: Op.FOUND,
}
_ERRORS: dict[str, type[Exception]] = {
    "PeerLostError": PeerLostError,
    "TimeoutError": TimeoutError,
    "ValueError": ValueError,
    "DamagedError": ValueError,
    "SaveInUseError": ValueError,
}


class ServerLostError(ConnectionError):
    """A server was away for longer than anybody waits for it."""


@dataclass(frozen=True)
class Access:
    """How servers are reached: the secret, who we are, encryption, and how long to try."""

    token: bytes
    claim: Claim
    tls: ssl.SSLContext | None = None
    patience: float = PATIENCE
    shared_memory: bool = True
    """Whether rows of servers on the same host are read in their memory."""


class Request(NamedTuple):
    """A header, and what is sent behind it."""

    frame: Frame
    parts: Sequence[Bytes | Array] = ()


class Channel:
    """Requests are kept until they are answered, and sent again if the connection was lost."""

    def __init__(
        self, endpoint: str, access: Access, *, answer_timeout: float | None = None
    ) -> None:
        """Describe the connection; it is made when the first request is sent.

        Args:
            endpoint: where the server listens.
            access: how it is reached.
            answer_timeout: seconds in which an answer must begin; None where the server may have to
                wait for other workers first.
        """
        self.endpoint, self._access, self._answer_timeout = endpoint, access, answer_timeout
        host, _, port = endpoint.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._pipe: Pipe | None = None
        self._shares_memory = access.shared_memory and access.tls is None
        self._shared_reader: SharedReplyReader | None = None
        self._asked: deque[Request] = deque()
        """Requests whose answers were not read to their ends."""
        self._seq = 0
        self._ended = False

    def next_seq(self) -> int:
        """The number of the next change."""
        self._seq += 1
        return self._seq

    def send(self, frame: Frame, *rest: Bytes | Array) -> None:
        """Send a request; a failure shows, and is mended, when its answer is read."""
        self.send_all([Request(frame, rest)])

    def send_all(self, requests: Sequence[Request]) -> None:
        """Send several requests at once; their answers come in the same order.

        All but the first, and all answers but the last, must be small (``LARGE`` together): the
        other end may wait for us to read an answer before it reads the next request.
        """
        for request in requests:
            self._check(request.frame)
        if self._asked:
            # Somebody gave a request up, which is not sent again. What is still said about it must
            # not be taken for the answer to this one.
            self.close()
        self._asked = deque(requests)
        try:
            self._deliver(self._opened(time.monotonic() + self._access.patience))
        except (RefusedError, ServerLostError):
            raise
        except SharedMemoryError as error:
            self._stop_sharing_memory(error)
        except ConnectionError:
            self.close()

    def _check(self, frame: Frame) -> None:
        try:
            checked(frame, REQUESTS)
        except BadFrameError as error:
            raise ValueError(
                f"server {self.endpoint} takes no such request ({error}); use smaller batches, or "
                "more servers"
            ) from None

    def receive(self, read: Receive) -> Frame:
        """Read the answer to the oldest request that has none yet."""
        deadline = float("inf")  # a server may be away for so long, not think for so long
        while True:
            try:
                if self._pipe is None:
                    deadline = min(deadline, time.monotonic() + self._access.patience)
                    self._deliver(self._opened(deadline))
                frame = self._answer(read)
                self._asked.popleft()
                return frame
            except (RefusedError, ServerLostError):
                raise
            except SharedMemoryError as error:
                self._stop_sharing_memory(error)
            except ConnectionError as error:
                self.close()
                deadline = min(deadline, time.monotonic() + self._access.patience)
                if self._ended or time.monotonic() > deadline:
                    raise ServerLostError(self._lost(error)) from error
                logger.info("%s: %s; trying again", self.endpoint, error)
                time.sleep(_PAUSE)

    def _deliver(self, pipe: Pipe) -> None:
        if self._shares_memory and self._shared_reader is None and self._pulls():
            self._shared_reader = opened(pipe)
            self._shares_memory = self._shared_reader is not None
        parts: list[Bytes | Array] = []
        for request in self._asked:
            parts += [request.frame.packed(), *request.parts]
        pipe.send(*parts)

    def _pulls(self) -> bool:
        return any(request.frame.op == Op.PULL for request in self._asked)

    def _stop_sharing_memory(self, error: SharedMemoryError) -> None:
        """Have replies sent from now on, over a connection on which the server was not asked."""
        logger.info("server %s has to send its rows: %s", self.endpoint, error)
        self._shares_memory = False
        self.close()

    def _answer(self, read: Receive) -> Frame:
        assert self._pipe is not None
        head = memoryview(bytearray(HEADER.size))
        self._pipe.read(head, idle=self._answer_timeout is None)
        frame = unpacked(head, REPLIES)
        if frame.op == Op.ERROR:
            answer = from_json(self._pipe.read_exactly(frame.body))
            self._asked.popleft()
            kind = _ERRORS.get(str(answer.get("error")), RuntimeError)
            raise kind(f"server {self.endpoint}: {answer.get('text')}")
        self._check_fit(frame)
        source = self._shared_reader if frame.flags & Flag.SHARED else self._pipe
        assert source is not None, "a server may say so only if it was asked where"
        read(frame, source.read)
        return frame

    def _check_fit(self, frame: Frame) -> None:
        asked = self._asked[0].frame
        fits = (frame.op, frame.seq) == (_REPLY[asked.op], asked.seq)
        if not fits or (asked.op == Op.PULL and frame.count != asked.count):
            raise RuntimeError(
                f"server {self.endpoint} answered {name_of(asked.op)} {asked.seq} of {asked.count} "
                f"with {name_of(frame.op)} {frame.seq} of {frame.count}; are both of one version?"
            )

    def _opened(self, deadline: float) -> Pipe:
        refusals = 0
        while self._pipe is None:
            try:
                self._pipe = self._connect()
            except ssl.SSLCertVerificationError as error:
                raise RefusedError(
                    f"the certificate of server {self.endpoint} cannot be trusted ({error}); set "
                    "FLEETX_PS_CERT to the same file on both ends, a certificate that names "
                    f"{self._address[0]} as subjectAltName"
                ) from error
            except EncryptionError as error:
                raise RefusedError(f"server {self.endpoint}: {error}") from error
            except OSError as error:
                refusals += isinstance(error, RefusedError)
                if refusals == REFUSALS:
                    raise
                if self._ended or time.monotonic() > deadline:
                    raise ServerLostError(self._lost(error)) from error
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
                sock = self._encrypted(sock, self._access.tls)
            pipe = Pipe(sock, stall=hurry)
            greet(self._access.token, self._access.claim, pipe.read_exactly, pipe.send)
        except BaseException:
            sock.close()
            raise
        _enable_keepalive(sock, min(PATIENCE, self._access.patience))
        return Pipe(sock, stall=STALL if self._answer_timeout is None else self._answer_timeout)

    def _encrypted(self, sock: socket.socket, tls: ssl.SSLContext) -> socket.socket:
        try:
            return tls.wrap_socket(sock, server_hostname=self._address[0])
        except ssl.SSLError as error:
            if error.reason != "WRONG_VERSION_NUMBER":  # what plain words look like
                raise
            raise EncryptionError(
                "it does not encrypt its connections, and this worker does (FLEETX_PS_CERT is "
                "set); set FLEETX_PS_CERT and FLEETX_PS_KEY for every server, or unset them here"
            ) from error

    def _lost(self, error: Exception) -> str:
        return (
            f"server {self.endpoint} did not answer for {self._access.patience:.0f} s ({error}); "
            "look at its log, and start it again if it is gone"
        )

    def hang_up(self) -> None:
        """Let whoever waits for an answer, in another thread, try anew for as long as may be."""
        if (pipe := self._pipe) is not None:
            with contextlib.suppress(OSError):  # it is closed already
                pipe.socket.shutdown(socket.SHUT_RDWR)

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
        if self._shared_reader is not None:
            self._shared_reader.close()
            self._shared_reader = None


def _enable_keepalive(sock: socket.socket, seconds: float) -> None:
    """Let the kernel notice within about so many seconds that the other machine is gone."""
    whole = max(2, int(seconds))
    options = {
        "TCP_KEEPIDLE": whole // 2,
        "TCP_KEEPINTVL": max(1, whole // 8),
        "TCP_KEEPCNT": 4,
        "TCP_USER_TIMEOUT": 1000 * whole,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # not every platform has all
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
