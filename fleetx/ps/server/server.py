"""A parameter server: a thread for each connection, and one for the small requests of all of them.

Threads that each answer small requests take the interpreter's lock from each other many times in
each of them, at every call that waits or computes, and wait longer for it than they work. So such
requests of all connections are answered by one thread, while those of the connections sleep; they
go on when something comes that is large, has to wait, or is rare.
"""

import logging
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.ps.server.logged_dense_table import LoggedDenseTable
from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.server.logged_table import LoggedTable, TableLostError
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.shared_thread import Served, SharedThread
from fleetx.ps.server.strangers import Strangers
from fleetx.ps.wire.arrays import Array
from fleetx.ps.wire.errors import PeerLostError
from fleetx.ps.wire.frames import (
    CHANGING,
    HEADER,
    LOOKING,
    SHORT,
    BadFrameError,
    Flag,
    Frame,
    Op,
    done,
)
from fleetx.ps.wire.handshake import ENCRYPTED, OBSERVER, Claim, RefusedError, receive
from fleetx.ps.wire.messages import Message, from_json, to_json
from fleetx.ps.wire.pipes import LARGE, Bytes, EndedError, Pipe, byte_view
from fleetx.ps.wire.request_reader import RequestReader
from fleetx.ps.wire.shared_memory_server import ROWS_AT, SharedReplyWriter
from fleetx.ps.wire.short_floats import shortened
from fleetx.ps.wire.versions import Version
from fleetx.roles import figures

logger = logging.getLogger(__name__)

MOST_STRANGERS = 128
"""Connections whose ends have not proved that they know the token, at most."""
GREETING = 5.0
"""Seconds that a greeting may take in all, however slowly its bytes come."""
PLAIN = 2.0
"""Seconds after which a caller that says nothing is told that this server encrypts."""
WATCH = 0.5
QUICK_ONES = 8
"""Small requests in a row after which the shared thread serves a connection."""
SHORT_WAIT = 0.002
"""Seconds that the shared thread waits for a table: as long as other small requests take."""
_COPYING = (Op.FOLLOW, Op.FETCH, Op.SCAN)
"""What only those ask for who keep copies of tables."""


class AllWorkersLostError(RuntimeError):
    """No worker is left, and none has said that it was done."""


class Server(socketserver.ThreadingTCPServer):
    """Listens on one address until the last worker is done."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: RequestHandler,
        token: bytes,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.handler, self.token, self.tls = handler, token, tls
        self.strangers = Strangers(MOST_STRANGERS, GREETING)
        self.open_connections = 0
        handler.connections = lambda: self.open_connections
        self.shared = SharedThread()
        self._count = threading.Lock()
        self._trouble = ""
        super().__init__(address, Connection)

    def run(self) -> None:
        """Serve until all workers are done."""
        watch = threading.Thread(target=self._watch, name="watch", daemon=True)
        watch.start()
        self.serve_forever(poll_interval=0.1)
        watch.join()
        self.shared.close()
        self.handler.clear()
        if self.handler.membership.abandoned:
            raise AllWorkersLostError(
                "all workers are dead, and none has come back for "
                f"{self.handler.patience:.0f} s (FLEETX_TIMEOUT); this server ends, and keeps the "
                "state from which the job can go on: look at the logs of the workers"
            )

    def _watch(self) -> None:
        while not self.handler.membership.ended.wait(WATCH):
            self._try(self.handler.membership.find_dead)
            self._try(self.handler.tidy)
            self._try(self._tell)
        self._try(self.handler.tidy)
        self.shutdown()

    def _tell(self) -> None:
        figures.put(tables=self.handler.figures())
        self.handler.take_rates()

    def _try(self, task: Callable[[], object]) -> None:
        """A full disk must not end the watch: nobody would notice dead workers, or the end."""
        try:
            task()
        except Exception as error:
            if str(error) != self._trouble:  # it comes twice a second
                self._trouble = str(error)
                logger.exception("the watch goes on")

    def count(self, change: int) -> None:
        """Note that a connection opened or closed."""
        with self._count:
            self.open_connections += change

    @override
    def service_actions(self) -> None:
        self.strangers.drop_late()

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
            pipe, claim = self._greeted()
            self._known(pipe, claim)
        except EndedError:
            logger.debug("%s left", self.client_address)
        except (BadFrameError, RefusedError, OSError) as error:
            logger.warning("connection from %s closed: %s", self.client_address, error)
        finally:
            self.server.count(-1)

    def _greeted(self) -> tuple[Pipe, Claim]:
        """The connection, when its other end has proved that it knows the token."""
        sock = self.request
        if self.server.tls is not None:
            # Here and not where connections are accepted: a slow caller keeps nobody else waiting.
            sock = self.server.tls.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
            self.request = sock
        with self.server.strangers.greeting(sock):
            if self.server.tls is not None:
                _shake_hands(sock)
            pipe = Pipe(sock, stall=GREETING)
            claim = receive(self.server.token, pipe.read_exactly, pipe.send)
        return Pipe(sock, corks=True), claim

    def _known(self, pipe: Pipe, claim: Claim) -> None:
        membership = self.server.handler.membership
        if claim.worker == OBSERVER:
            self._serve(pipe, claim)
            return
        if claim.worker >= membership.workers:
            raise BadFrameError(f"there is no worker {claim.worker} in this job")
        membership.connected(claim.worker)
        try:
            self._serve(pipe, claim)
        finally:
            membership.disconnected(claim.worker)

    def _serve(self, pipe: Pipe, claim: Claim) -> None:
        loop = _RequestLoop(self.server.handler, pipe, claim)
        try:
            loop.serve(self.server.shared)
        except BadFrameError as error:
            loop.refuse(error)
            raise
        finally:
            loop.close()


def _shake_hands(sock: ssl.SSLSocket) -> None:
    """Begin to encrypt; a caller that waits to be greeted in plain words is told what is wrong."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if not poll.poll(1000 * PLAIN):
        socket.socket.send(sock, ENCRYPTED)
        raise ConnectionAbortedError("the caller does not encrypt, or is too slow to begin")
    sock.settimeout(GREETING)
    sock.do_handshake()


class _RequestLoop:
    """Reads a request, answers it; buffers are kept from one to the next."""

    def __init__(self, handler: RequestHandler, pipe: Pipe, claim: Claim) -> None:
        self._handler, self._pipe, self._claim = handler, pipe, claim
        self._observes = claim.worker == OBSERVER
        self._reader = RequestReader(pipe)
        self._replies = SharedReplyWriter(pipe)
        self._held: list[memoryview] | None = None
        """Replies that are sent together, while the shared thread serves."""

    def serve(self, shared: SharedThread) -> None:
        """Answer requests until the connection ends; small ones in the thread that all share."""
        quick = 0
        while True:
            quick = quick + 1 if self._serve_one() else 0
            if quick >= QUICK_ONES and self._reader.empty and not self._pipe.secure:
                self._be_served(shared)
                quick = 0

    def _be_served(self, shared: SharedThread) -> None:
        try:
            shared.serve(self)
        finally:
            held, self._held = self._held, None
        if held:  # it could not be sent without waiting
            self._pipe.send(*held)

    def _serve_one(self) -> bool:
        """Wait for a request and answer it; returns whether it was one that takes no time."""
        frame, body = self._reader.next()
        quick = self._handler.quick_table(frame) is not None
        self._hear()
        if self._observes:
            self._handler.check_observer(frame)
        self._serve(frame, body)
        return quick

    def fileno(self) -> int:
        """By which the system knows the connection."""
        return self._pipe.socket.fileno()

    def receive(self) -> bool:
        """Read what has come; whether it is somebody who only looks."""
        if self._held is None:
            self._held = []
        self._reader.poll()
        self._hear()
        frame = self._reader.head
        return frame is not None and frame.op in LOOKING

    def serve_next(self) -> Served:
        """Answer the next request that takes no time; replies are sent with the last one."""
        reader = self._reader
        if (frame := reader.head) is None:
            return self._sent()
        if (logged := self._handler.quick_table(frame)) is None:
            return self._sent(leaves=True)
        if not reader.complete(frame):
            return self._sent()
        if self._observes:
            self._handler.check_observer(frame)
        if not logged.changed.acquire(timeout=SHORT_WAIT):  # others have the table for long
            return self._sent(leaves=True)
        try:
            self._serve(frame, reader.taken(frame), logged)
        finally:
            logged.changed.release()
        return self._sent() if reader.empty else Served.MORE

    def _sent(self, *, leaves: bool = False) -> Served:
        """Send the replies; who does not take them at once is served by its own thread."""
        assert self._held is not None, "since it received something"
        if self._held:
            self._pipe.send_some(self._held)
        return Served.OWN_THREAD if leaves or self._held else Served.NOTHING

    def _serve(self, frame: Frame, body: memoryview, logged: LoggedTable | None = None) -> None:
        """Answer a request, about this table if that is known."""
        try:
            if logged is None:
                self._answer(frame, body)
            else:
                self._answer_about(logged, frame, body)
        except (BadFrameError, ConnectionError):
            raise
        except (ValueError, TimeoutError, PeerLostError, TableLostError, OSError) as error:
            self.refuse(error)
        except Exception as error:  # unanswered, it would be asked again until patience ends
            logger.exception("a request failed")
            self.refuse(RuntimeError(f"{type(error).__name__}: {error} (its log says where)"))

    def _hear(self) -> None:
        if not self._observes:
            self._handler.membership.heard(self._claim.worker)

    def close(self) -> None:
        """Give the memory for replies back."""
        self._replies.close()

    def _send(self, *parts: Bytes | Array) -> None:
        if self._held is None:
            self._pipe.send(*parts)
        else:
            for part in parts:
                if len(part):
                    self._held.append(byte_view(part))

    def refuse(self, error: Exception) -> None:
        """Tell the client what was wrong."""
        self._message(Op.ERROR, {"error": type(error).__name__, "text": str(error)})

    def _answer(self, frame: Frame, body: memoryview) -> None:
        op = frame.op
        if op in LoggedSparseTable.takes:
            self._answer_about(self._handler.sparse(frame), frame, body)
        elif op in LoggedDenseTable.takes:
            self._answer_about(self._handler.dense(frame), frame, body)
        elif op == Op.CHANGED_IDS:
            self._send_changed_ids(frame)
        elif op == Op.SHARED_MEMORY:
            self._message(Op.ANSWER, self._replies.offer())
        elif op in _COPYING:
            self._send_for_copies(frame, body)
        else:
            self._message(Op.ANSWER, self._called(from_json(body)))

    def _answer_about(self, logged: LoggedTable, frame: Frame, body: memoryview) -> None:
        """Answer what every batch asks of a table of this kind."""
        if frame.op in CHANGING:
            logged.change(self._claim, frame, body)
            self._send(done(frame.seq, logged.version))
        elif isinstance(logged, LoggedSparseTable):
            self._pull(logged, frame, body)
        else:
            assert isinstance(logged, LoggedDenseTable), "there are no others"
            values, version = logged.read(self._claim, frame, self._handler.patience)
            self._reply(Frame(Op.VALUES, count=len(values), step=version), values)

    def _called(self, message: Message) -> Message:
        return self._handler.call(self._claim, message, self._pipe.connected)

    def _pull(self, logged: LoggedSparseTable, frame: Frame, body: memoryview) -> None:
        width = logged.table.spec.dim
        end = ROWS_AT + 4 * frame.count * width
        self._replies.reserve(end)
        out = self._replies.bytes[ROWS_AT:end].view(np.float32).reshape(frame.count, width)
        self._handler.pull(logged, self._claim, frame, body, out)
        if short := frame.flags & SHORT:
            reply = Frame(Op.ROWS, flags=short, count=frame.count, width=width)
            self._reply(reply, shortened(out, short))
        else:
            self._rows(Frame(Op.ROWS, count=frame.count, width=width, body=out.nbytes), end)

    def _rows(self, head: Frame, end: int) -> None:
        if self._replies.offered and head.body > LARGE and self._held is None:
            self._send(head._replace(flags=Flag.SHARED).packed())
        else:
            begin = ROWS_AT - HEADER.size
            head.write(self._replies.bytes, begin)
            if self._held is None:
                self._replies.send(begin, end)
            else:
                self._send(self._replies.bytes[begin:end].tobytes())  # the next reply comes there

    def _send_changed_ids(self, frame: Frame) -> None:
        last, ids = self._handler.sparse(frame).changed_ids(self._claim, frame)
        reply = Frame(Op.IDS, seq=frame.seq, step=last)
        if ids is None:
            self._send(reply._replace(flags=Flag.ALL).packed())
        else:
            self._reply(reply._replace(count=len(ids)), ids)

    def _send_for_copies(self, frame: Frame, body: memoryview) -> None:
        logged = self._handler.sparse(frame)
        if frame.op == Op.FOLLOW:
            self._send_changes(logged, body)
        elif frame.op == Op.FETCH:
            self._send_found(*logged.fetch(np.frombuffer(body, np.int64, frame.count)))
        else:
            self._send_found(*logged.scan(frame.step, frame.width))

    def _send_changes(self, logged: LoggedSparseTable, body: memoryview) -> None:
        version, ids = logged.changed_since(Version.unpacked(body))
        packed, flags = version.packed(), Flag.ALL if ids is None else Flag.NONE
        found: Array = np.empty(0, np.int64) if ids is None else ids
        reply = Frame(Op.CHANGES, flags=flags, count=len(found), body=len(packed) + found.nbytes)
        self._send(reply.packed(), packed, found)

    def _send_found(self, ids: Array, rows: Array) -> None:
        size = ids.nbytes + rows.nbytes
        reply = Frame(Op.FOUND, count=len(ids), width=rows.shape[1], body=size)
        self._send(reply.packed(), ids, rows)

    def _reply(self, frame: Frame, array: Array) -> None:
        self._send(frame._replace(body=array.nbytes).packed(), array)

    def _message(self, op: int, content: dict[str, Any]) -> None:
        data = to_json(content)
        self._send(Frame(op, body=len(data)).packed(), data)
