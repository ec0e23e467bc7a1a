"""Requests to servers with who takes their answers, and how answers become arrays."""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from fleetx.ps.wire.arrays import Array, Floats, Ids
from fleetx.ps.wire.channel import Fill, Receive, Request
from fleetx.ps.wire.frames import Frame
from fleetx.ps.wire.pipes import LARGE, byte_view
from fleetx.ps.wire.short_floats import widened


def _nothing(frame: Frame, fill: Fill) -> None:
    """A reply without a body."""


class Exchange(NamedTuple):
    """A request to one server, and who takes the answer."""

    server: int
    request: Request
    read: Receive = _nothing
    answer_bytes: int = 0
    """How long the answer will be, if it is long."""


def taken_together(waiting: deque[Exchange]) -> list[Exchange]:
    """Take the next requests to one server that can be sent at once."""
    taken: list[Exchange] = []
    sent = answered = 0
    while waiting:
        each = waiting[0]
        sent += each.request.frame.body if taken else 0
        if sent > LARGE or (taken and answered > LARGE):
            break
        answered += each.answer_bytes
        taken.append(waiting.popleft())
    return taken


def ids_to(found: list[Ids]) -> Any:
    """Reads a reply of ids into an array of its own."""

    def read(frame: Frame, fill: Fill) -> None:
        ids = np.empty(frame.count, np.int64)
        if frame.body:
            fill(byte_view(ids))
        found.append(ids)

    return read


def into(array: Floats, short: int = 0) -> Any:
    """Reads a reply right into an array, or beside it when its numbers are short."""

    def read(frame: Frame, fill: Fill) -> None:
        target: Array = np.empty(array.shape, np.int16) if short else array
        if frame.body != target.nbytes:
            raise RuntimeError(f"{frame.body} bytes came where {target.nbytes} were expected")
        if frame.body:
            fill(byte_view(target))
        if short:
            array[...] = widened(target, short)

    return read
