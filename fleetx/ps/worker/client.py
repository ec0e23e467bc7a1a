"""What a worker asks of its servers: rows, values, changes and a few rare things."""

import os
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, pairwise

import numpy as np

from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.wire import frames
from fleetx.ps.wire.arrays import Array, Floats, Ids
from fleetx.ps.wire.channel import Access, Channel, Fill, Request
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.wire.messages import Message, from_json, to_json
from fleetx.ps.wire.short_floats import shortened
from fleetx.ps.worker.exchanges import Exchange, ids_to, into, taken_together
from fleetx.ps.worker.table_handle import TableHandle

_ONCE = ("load", "save", "shrink")
"""Methods that must not happen twice."""
Steps = int | list[int]
"""A version of a table: the same on all servers, or each server's own."""


class Client:
    """One connection to each server; calls from several threads take turns."""

    def __init__(
        self, endpoints: Sequence[str], access: Access, *, answer_timeout: float | None = None
    ) -> None:
        claim = Claim(access.claim.worker, secrets.randbits(63))
        # Each client numbers its own changes, so it needs a name of its own.
        named = replace(access, claim=claim)
        self.channels = [
            Channel(endpoint, named, answer_timeout=answer_timeout) for endpoint in endpoints
        ]
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._calls = count(1)
        self._owed: list[Exchange] = []
        """Changes that must arrive, and whose answers were not read yet."""

    @property
    def servers(self) -> int:
        """How many there are."""
        return len(self.channels)

    def call(self, message: Message, server: int = 0) -> Message:
        """One of the rare requests to one server."""
        with self._turn():
            self._ask(server, self._numbered(message))
            return self._answer(server)

    def call_all(self, messages: Message | Sequence[Message]) -> list[Message]:
        """The same to all servers at once, or to each its own."""
        with self._turn():
            if isinstance(messages, dict):
                each = [self._numbered(messages)] * self.servers
            else:
                each = [self._numbered(message) for message in messages]
            for server, message in enumerate(each):
                self._ask(server, message)
            return [self._answer(server) for server in range(self.servers)]

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Be the only thread that asks; a process that was forked from ours has no turn.

        It has our connections: each would read answers to the other.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "servers were asked for rows or values by a process that was forked from the "
                "worker, such as that of a DataLoader with num_workers, and a worker alone may ask "
                "them; look rows up in the training loop and not in the data set"
            )
        with self._lock:
            self._pay()
            yield

    def owe(self, asked: Iterable[Exchange]) -> None:
        """Changes that go ahead of the next request; one that is interrupted leaves them owed."""
        self._owed.extend(asked)

    def _pay(self) -> None:
        if not self._owed:
            return
        # They keep their numbers: what a server has of them already it takes for known.
        owed = [
            each._replace(request=_numbered(each.request, self.channels[each.server]))
            for each in self._owed
        ]
        self._owed[: len(owed)] = owed
        try:
            self._exchange(owed)
        except ConnectionError:
            raise  # the server may come back
        except Exception:  # refused, as our caller is told; the next request would be, too
            del self._owed[: len(owed)]
            raise
        del self._owed[: len(owed)]

    def _numbered(self, message: Message) -> Message:
        """A request that must not be done twice bears a number: it may have to be sent twice."""
        return message | {"call": next(self._calls)} if message["method"] in _ONCE else message

    def _ask(self, server: int, message: Message) -> None:
        data = to_json(message)
        self.channels[server].send(Frame(Op.CALL, body=len(data)), data)

    def _answer(self, server: int) -> Message:
        found: list[Message] = []

        def read(frame: Frame, fill: Fill) -> None:
            data = bytearray(frame.body)
            fill(memoryview(data))
            found.append(from_json(data))

        self.channels[server].receive(read)
        return found[0]

    def create(
        self, kind: str, specs: Sequence[Message], width: int, *, short: int = 0
    ) -> TableHandle:
        """Make a table on all servers, or find the one that another worker made."""
        asked = [{"method": "create", "kind": kind, "spec": spec} for spec in specs]
        numbers = tuple(int(answer["table"]) for answer in self.call_all(asked))
        return TableHandle(specs[0]["name"], numbers, width, short, [0] * self.servers)

    def pull(
        self,
        table: TableHandle,
        batch: IdBatch,
        out: Floats | None = None,
        *,
        train: bool = True,
        step: Steps = 0,
        met: Array | None = None,
    ) -> Floats:
        """The rows of a batch, in its order."""
        if out is None:
            out = np.empty((len(batch.ids), table.width), np.float32)
        self.exchange(self.pulling(table, batch, out, train=train, step=step, met=met))
        return out

    def pulling(
        self,
        table: TableHandle,
        batch: IdBatch,
        out: Floats,
        *,
        train: bool = True,
        step: Steps = 0,
        met: Array | None = None,
    ) -> list[Exchange]:
        """What ``pull`` asks for."""
        flags = (Flag.TRAIN if train else Flag.NONE) | (Flag.COUNTS if met is not None else 0)
        flags |= table.short
        most = frames.MAX_BODY // max(12, 4 * table.width)  # of what is sent, and of what comes
        asked: list[Exchange] = []
        for server, cut, _ in self._frames(batch, most):
            counts = [] if met is None else [np.ascontiguousarray(met[cut], np.uint32)]
            arrays: list[Array] = [batch.ids[cut], *counts]
            head = Frame(
                Op.PULL,
                table.numbers[server],
                flags,
                count=cut.stop - cut.start,
                step=_of(step, server),
                body=sum(array.nbytes for array in arrays),
            )
            rows = out[cut]
            request = Request(head, arrays)
            asked.append(Exchange(server, request, into(rows, table.short), rows.nbytes))
        return asked

    def _frames(
        self, batch: IdBatch, most: int, *, everywhere: bool = False
    ) -> Iterator[tuple[int, slice, bool]]:
        """Server, which ids of a batch go to it in one frame, and whether more follow.

        Args:
            batch: all of them.
            most: rows in one frame.
            everywhere: also to servers that have none of the rows.
        """
        for server, (begin, end) in enumerate(pairwise(batch.begins.tolist())):
            firsts = range(begin, end, most) or (range(begin, begin + 1) if everywhere else ())
            for first in firsts:
                last = min(first + most, end)
                yield server, slice(first, last), last < end

    def exchange(self, asked: Iterable[Exchange]) -> list[Frame]:
        """Send requests and take the answers; what is small goes to a server in one piece.

        Requests to one server are answered in their order, those to several at the same time.
        """
        with self._turn():
            return self._exchange(asked)

    def _exchange(self, asked: Iterable[Exchange]) -> list[Frame]:
        waiting: list[deque[Exchange]] = [deque() for _ in self.channels]
        for each in asked:
            waiting[each.server].append(each)
        answers: list[Frame] = []
        while any(waiting):
            together = [*map(taken_together, waiting)]
            for channel, pieces in zip(self.channels, together, strict=True):
                if pieces:
                    channel.send_all([_numbered(each.request, channel) for each in pieces])
            for channel, pieces in zip(self.channels, together, strict=True):
                answers += [channel.receive(each.read) for each in pieces]
        return answers

    def push(
        self,
        table: TableHandle,
        batch: IdBatch,
        values: Array,
        *,
        rate: float = -1.0,
        step: Steps = 0,
        delta: bool = False,
        everywhere: bool = False,
        stats: Floats | None = None,
    ) -> int:
        """Send gradients (or differences) for a batch; returns the version it led to.

        Args:
            table: where to.
            batch: which rows.
            values: one for each id of the batch.
            rate: the learning rate; negative for the table's own.
            step: the version that it is based on, for updates in rounds.
            delta: add to the weights, past the rule.
            everywhere: also to servers that have none of the rows, which wait for all workers.
            stats: shows and clicks of each id.
        """
        asked = self.pushing(
            table,
            batch,
            values,
            rate=rate,
            step=step,
            delta=delta,
            everywhere=everywhere,
            stats=stats,
        )
        answers = self.exchange(asked)
        return answers[-1].step if answers else 0

    def pushing(
        self,
        table: TableHandle,
        batch: IdBatch,
        values: Array,
        *,
        rate: float = -1.0,
        step: Steps = 0,
        delta: bool = False,
        everywhere: bool = False,
        stats: Floats | None = None,
        initial: bool = False,
    ) -> list[Exchange]:
        """What ``push`` asks for; ``initial`` rows are for ids that have none, as they are."""
        flags = (
            Flag.UNIQUE | (Flag.DELTA if delta else 0) | (Flag.COUNTS if stats is not None else 0)
        )
        flags |= Flag.INITIAL if initial else table.short
        values = values if initial else shortened(values, table.short)
        each = 8 + values.itemsize * table.width + (8 if stats is not None else 0)
        asked: list[Exchange] = []
        for server, cut, follows in self._frames(
            batch, frames.MAX_BODY // each, everywhere=everywhere
        ):
            arrays: list[Array] = [batch.ids[cut], values[cut]]
            arrays += [] if stats is None else [stats[cut]]
            # A round takes what belongs together; else each frame is a push of its own.
            more = Flag.MORE if everywhere and follows else 0
            head = Frame(
                Op.PUSH,
                table.numbers[server],
                flags | more,
                count=cut.stop - cut.start,
                width=table.width,
                step=_of(step, server),
                rate=rate,
                body=sum(array.nbytes for array in arrays),
            )
            asked.append(Exchange(server, Request(head, arrays)))
        return asked

    def changed_ids(self, table: TableHandle, since: list[int], reader: int) -> IdBatch | None:
        """Ids of rows that others than the reader have changed; None if any row may be.

        Args:
            table: of the rows.
            since: the last change on each server that is no news; set to the last one there now.
            reader: what it calls itself in the ``step`` of its pushes.
        """
        found: list[Ids] = []
        with self._turn():
            for server, channel in enumerate(self.channels):
                number, last = table.numbers[server], since[server]
                channel.send(Frame(Op.CHANGED_IDS, number, seq=reader, step=last))
            replies = [channel.receive(ids_to(found)) for channel in self.channels]
        since[:] = [reply.step for reply in replies]
        if any(reply.flags & Flag.ALL for reply in replies):
            return None
        begins = np.cumsum([0, *map(len, found)])
        return IdBatch(np.concatenate(found), begins, np.arange(begins[-1]))

    def read(self, table: TableHandle, out: Sequence[Floats], *, step: Steps = 0) -> int:
        """All values of a dense table, one array for each server; returns the lowest version."""
        return min(reply.step for reply in self.exchange(self.reading(table, out, step=step)))

    def reading(
        self, table: TableHandle, out: Sequence[Floats], *, step: Steps = 0
    ) -> list[Exchange]:
        """What ``read`` asks for."""
        return [
            Exchange(
                server,
                Request(Frame(Op.READ, table.numbers[server], step=_of(step, server))),
                into(values),
                values.nbytes,
            )
            for server, values in enumerate(out)
        ]

    def write(
        self,
        table: TableHandle,
        values: Sequence[Floats],
        *,
        rate: float = -1.0,
        step: Steps = 0,
        flag: int = Flag.NONE,
    ) -> None:
        """Gradients, differences or first values of a dense table, an array for each server."""
        self.exchange(self.writing(table, values, rate=rate, step=step, flag=flag))

    def writing(
        self,
        table: TableHandle,
        values: Sequence[Floats],
        *,
        rate: float = -1.0,
        step: Steps = 0,
        flag: int = Flag.NONE,
        present: Sequence[Array] | None = None,
    ) -> list[Exchange]:
        """What ``write`` asks for; blocks that are not ``present`` have no gradient."""
        asked: list[Exchange] = []
        for server, array in enumerate(values):
            parts = [array] if present is None else [array, present[server]]
            head = Frame(
                Op.WRITE,
                table.numbers[server],
                flag,
                count=len(array),
                width=0 if present is None else len(present[server]),
                step=_of(step, server),
                rate=rate,
                body=sum(part.nbytes for part in parts),
            )
            asked.append(Exchange(server, Request(head, parts)))
        return asked

    def hang_up(self, server: int) -> None:
        """Let those who wait for a server that is silent try to reach it anew."""
        self.channels[server].hang_up()

    def end(self) -> None:
        """End all connections for good, also under a thread that still waits for an answer."""
        for channel in self.channels:
            channel.end()

    def close(self) -> None:
        """End all connections."""
        for channel in self.channels:
            channel.close()


def _of(step: Steps, server: int) -> int:
    return step if isinstance(step, int) else step[server]


def _numbered(request: Request, channel: Channel) -> Request:
    """Changes are numbered as they are sent: servers take a lower number for one they know."""
    if request.frame.op not in frames.CHANGING or request.frame.seq:
        return request
    return request._replace(frame=request.frame._replace(seq=channel.next_seq()))
