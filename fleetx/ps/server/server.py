"""A parameter server: one thread for each connection, over one desk."""

import logging
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.ps.server.logged_table import TableLostError
from fleetx.ps.server.request_handler import Desk
from fleetx.ps.wire.arrays import Array
from fleetx.ps.wire.errors import PeerLostError
from fleetx.ps.wire.frames import HEADER, REQUESTS, SHORT, BadFrameError, Flag, Frame, Op, unpacked
from fleetx.ps.wire.handshake import Claim, RefusedError, receive
from fleetx.ps.wire.messages import from_json, to_json
from fleetx.ps.wire.pipes import LARGE, EndedError, Pipe
from fleetx.ps.wire.shared_memory_server import ROWS_AT, Room
from fleetx.ps.wire.short_floats import shortened

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 1024
HANDSHAKE = 5.0
WATCH = 0.5


class Server(socketserver.ThreadingTCPServer):
    """Listens on one address until the last worker is done."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        desk: Desk,
        token: bytes,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.desk, self.token, self.tls = desk, token, tls
        self.open_connections = 0
        self._count = threading.Lock()
        self._trouble = ""
        super().__init__(address, Connection)

    def run(self) -> None:
        """Serve until all workers are done."""
        watch = threading.Thread(target=self._watch, name="watch", daemon=True)
        watch.start()
        self.serve_forever(poll_interval=0.1)
        watch.join()
        self.desk.clear()

    def _watch(self) -> None:
        while not self.desk.members.ended.wait(WATCH):
            self._try(self.desk.members.look)
            self._try(self.desk.tidy)
        self._try(self.desk.tidy)
        self.shutdown()

    def _try(self, task: Callable[[], object]) -> None:
        """A full disk must not end the watch: nobody would notice dead workers, or the end."""
        try:
            task()
        except Exception as error:
            if str(error) != self._trouble:  # it comes twice a second
                self._trouble = str(error)
                logger.exception("the watch goes on")

    def count(self, change: int) -> int:
        """Note that a connection opened or closed."""
        with self._count:
            self.open_connections += change
            return self.open_connections

    @override
    def verify_request(self, request: Any, client_address: Any) -> bool:
        if self.open_connections < MOST_CONNECTIONS:
            return True
        logger.warning("%s was turned away: too many connections", client_address)
        return False

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.exception("a connection from %s failed", client_address)


class Connection(socketserver.BaseRequestHandler):
    """One client's requests, one after the other."""

    server: Server

    @override
    def handle(self) -> None:
        self.server.count(+1)
        try:
            pipe = self._pipe()
            claim = receive(self.server.token, pipe.exactly, pipe.send)
            self._known(Pipe(pipe.socket, joins=True), claim)
        except EndedError:
            logger.debug("%s left", self.client_address)
        except (BadFrameError, RefusedError, OSError) as error:
            logger.warning("connection from %s closed: %s", self.client_address, error)
        finally:
            self.server.count(-1)

    def _pipe(self) -> Pipe:
        sock = self.request
        sock.settimeout(HANDSHAKE)
        if self.server.tls is not None:
            # Here and not where connections are accepted: a slow caller keeps nobody else waiting.
            sock = self.server.tls.wrap_socket(sock, server_side=True)
            self.request = sock
        return Pipe(sock, stall=HANDSHAKE)

    def _known(self, pipe: Pipe, claim: Claim) -> None:
        members = self.server.desk.members
        if claim.worker >= members.workers:
            raise BadFrameError(f"there is no worker {claim.worker} in this job")
        members.arrived(claim.worker)
        talk = _Talk(self.server.desk, pipe, claim)
        try:
            while True:
                talk.once()
        except BadFrameError as error:
            talk.refuse(error)
            raise
        finally:
            talk.close()
            members.left(claim.worker)


class _Talk:
    """Reads a request, answers it; buffers are kept from one to the next."""

    def __init__(self, desk: Desk, pipe: Pipe, claim: Claim) -> None:
        self._desk, self._pipe, self._claim = desk, pipe, claim
        self._head = memoryview(bytearray(HEADER.size))
        self._body = memoryview(bytearray(1 << 16))
        self._room = Room(pipe)

    def once(self) -> None:
        self._pipe.read(self._head, idle=True)
        frame = unpacked(self._head, REQUESTS)
        if frame.body > len(self._body):
            self._body = memoryview(bytearray(frame.body))
        body = self._body[: frame.body]
        self._pipe.read(body)
        self._desk.members.heard(self._claim.worker)
        try:
            self._answer(frame, body)
        except (ValueError, TimeoutError, PeerLostError, TableLostError, OSError) as error:
            if isinstance(error, ConnectionError):
                raise
            self.refuse(error)

    def close(self) -> None:
        """Give the memory for replies back."""
        self._room.close()

    def refuse(self, error: Exception) -> None:
        """Tell the client what was wrong."""
        self._message(Op.ERROR, {"error": type(error).__name__, "text": str(error)})

    def _answer(self, frame: Frame, body: memoryview) -> None:
        op = frame.op
        if op == Op.PULL:
            self._pull(frame, body)
        elif op == Op.PUSH:
            served = self._desk.sparse(frame)
            served.change(self._claim, frame, body)
            self._pipe.send(Frame(Op.DONE, seq=frame.seq, step=served.version).packed())
        elif op == Op.WRITE:
            dense = self._desk.dense(frame)
            dense.change(self._claim, frame, body)
            self._pipe.send(Frame(Op.DONE, seq=frame.seq, step=dense.version).packed())
        elif op == Op.READ:
            dense = self._desk.dense(frame)
            values, version = dense.read(self._claim, frame, self._desk.patience)
            self._reply(Frame(Op.VALUES, count=len(values), step=version), values)
        elif op == Op.NEWS:
            self._news(frame)
        elif op == Op.ROOM:
            self._message(Op.ANSWER, self._room.offer())
        else:
            self._message(Op.ANSWER, self._desk.call(self._claim, from_json(body)))

    def _pull(self, frame: Frame, body: memoryview) -> None:
        served = self._desk.sparse(frame)
        width = served.table.spec.dim
        end = ROWS_AT + 4 * frame.count * width
        self._room.reserve(end)
        out = self._room.bytes[ROWS_AT:end].view(np.float32).reshape(frame.count, width)
        self._desk.pull(served, self._claim, frame, body, out)
        if short := frame.flags & SHORT:
            reply = Frame(Op.ROWS, flags=short, count=frame.count, width=width)
            self._reply(reply, shortened(out, short))
        else:
            self._rows(Frame(Op.ROWS, count=frame.count, width=width, body=out.nbytes), end)

    def _rows(self, head: Frame, end: int) -> None:
        if self._room.offered and head.body > LARGE:
            self._pipe.send(head._replace(flags=Flag.NEAR).packed())
        else:
            begin = ROWS_AT - HEADER.size
            head.write(self._room.bytes, begin)
            self._room.send(begin, end)

    def _news(self, frame: Frame) -> None:
        last, ids = self._desk.sparse(frame).news(self._claim, frame)
        reply = Frame(Op.IDS, seq=frame.seq, step=last)
        if ids is None:
            self._pipe.send(reply._replace(flags=Flag.ALL).packed())
        else:
            self._reply(reply._replace(count=len(ids)), ids)

    def _reply(self, frame: Frame, array: Array) -> None:
        self._pipe.send(frame._replace(body=array.nbytes).packed(), array)

    def _message(self, op: int, said: dict[str, Any]) -> None:
        data = to_json(said)
        self._pipe.send(Frame(op, body=len(data)).packed(), data)
