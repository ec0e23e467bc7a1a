"""The wire: a fixed header, then raw arrays or a little JSON; nothing is ever unpickled."""

import struct
from typing import NamedTuple

from fleetx.ps.wire.arrays import Array

HEADER = struct.Struct("<IBBHHxxQIIqdQ4x")
MAGIC, VERSION = 0x58544C46, 1
MAX_BODY = 1 << 30
"""Bytes of arrays in one frame."""
MAX_JSON = 1 << 20


class Op:
    """What a frame is about; requests first, then replies.

    Plain numbers: to look up a member of an Enum takes a call, and each frame asks several times.
    """

    PULL = 1  # ids -> their rows
    PUSH = 2  # ids and gradients
    READ = 3  # a whole dense table
    WRITE = 4  # gradients of a dense table
    CALL = 5  # everything rare, as JSON
    CHANGED_IDS = 6  # which rows others have changed since a change
    SHARED_MEMORY = 7  # where a client on the same host can read rows that are not sent
    FOLLOW = 8  # which rows have changed since a version
    FETCH = 9  # ids -> those that have a row, and the rows
    SCAN = 10  # the same for all ids of one part of the table
    ROWS = 16
    VALUES = 17
    DONE = 18
    ANSWER = 19
    ERROR = 20
    IDS = 21
    CHANGES = 22
    FOUND = 23


def name_of(op: int) -> str:
    """What an operation is called."""
    return next((name for name, number in vars(Op).items() if number == op), str(op))


CHANGING = frozenset({Op.PUSH, Op.WRITE})
LOOKING = frozenset(
    {Op.PULL, Op.READ, Op.CHANGED_IDS, Op.SHARED_MEMORY, Op.FOLLOW, Op.FETCH, Op.SCAN}
)
REQUESTS = CHANGING | LOOKING | {Op.CALL}
REPLIES = frozenset(
    {Op.ROWS, Op.VALUES, Op.DONE, Op.ANSWER, Op.ERROR, Op.IDS, Op.CHANGES, Op.FOUND}
)
_WITH_ROWS = frozenset({Op.PULL, Op.PUSH, Op.ROWS})
_OURS = MAGIC, VERSION


class Flag:
    """How a request is meant; plain numbers, since each request puts several together."""

    NONE = 0
    UNIQUE = 1  # no id comes twice
    TRAIN = 2  # make rows that do not exist
    DELTA = 4  # add to the weights, past the rule
    COUNTS = 8  # how often ids were met, or shows and clicks, follow
    INITIAL = 16  # initial values, kept only when there are none yet
    FLOAT16 = 32  # rows or their gradients are float16
    BFLOAT16 = 64  # they are bfloat16
    ALL = 128  # any row may have changed
    SHARED = 256  # the body is not sent: it lies in the server's memory
    MORE = 512  # another frame with the rest of this push to a round follows


SHORT = Flag.FLOAT16 | Flag.BFLOAT16
_KNOWN = Flag.ALL - 1
_PLAIN = _KNOWN & ~SHORT
"""What any frame may bear."""
_ONLY_IN: dict[int, int] = {
    Op.IDS: Flag.ALL,
    Op.CHANGES: Flag.ALL,
    Op.ROWS: Flag.SHARED,
    Op.PUSH: Flag.MORE,
}
VERSION_BYTES = 24
"""What a version of a table takes; see ``versions.py``."""


class BadFrameError(Exception):
    """Bytes that no client of ours would send; the connection is closed."""


class Frame(NamedTuple):
    """A header; what follows it is ``body`` bytes long."""

    op: int
    table: int = 0
    flags: int = 0
    seq: int = 0
    """The number of a change among those of one client, so that a repeated one is noticed."""
    count: int = 0  # type: ignore[assignment]  # shadows the method of tuples, on purpose
    width: int = 0
    step: int = 0
    """The version of the table that is meant or asked for."""
    rate: float = 0.0
    """The learning rate of a push; negative leaves it to the table."""
    body: int = 0

    def packed(self) -> bytes:
        """The bytes of the header."""
        return HEADER.pack(MAGIC, VERSION, *self)

    def write(self, target: Array, at: int) -> None:
        """Write the header to a place among bytes."""
        HEADER.pack_into(target.data, at, MAGIC, VERSION, *self)


def done(seq: int, step: int) -> bytes:
    """The reply to a change: ``Frame(Op.DONE, seq=seq, step=step)`` in bytes."""
    return HEADER.pack(MAGIC, VERSION, Op.DONE, 0, 0, seq, 0, 0, step, 0.0, 0)


def unpacked(data: bytes | bytearray | memoryview, allowed: frozenset[int]) -> Frame:
    """The frame, or ``BadFrameError`` before a byte of its body is read or room made for it."""
    fields = HEADER.unpack(data)
    if fields[:2] != _OURS:
        raise BadFrameError(f"magic {fields[0]:#x} and version {fields[1]} are not ours")
    return checked(Frame._make(fields[2:]), allowed)


def checked(frame: Frame, allowed: frozenset[int]) -> Frame:
    """The same frame, or ``BadFrameError`` if nobody takes it."""
    op, flags = frame.op, frame.flags
    if op not in allowed:
        raise BadFrameError(f"operation {op} is not known here")
    if flags & ~_PLAIN:
        _check_flags(op, flags)
    expected = body_bytes(frame)
    if expected is None:
        if frame.body > MAX_JSON:
            raise BadFrameError(f"a message of {frame.body} bytes is too long")
    elif frame.body != expected:
        raise BadFrameError(
            f"{name_of(op)} of {frame.count} x {frame.width} has {frame.body} bytes, not {expected}"
        )
    if frame.body > MAX_BODY:
        raise BadFrameError(f"{frame.body} bytes in one frame are too many")
    return frame


def _check_flags(op: int, flags: int) -> None:
    short = flags & SHORT
    known = _KNOWN | _ONLY_IN.get(op, 0)
    if flags & ~known or short == SHORT or (short and op not in _WITH_ROWS):
        raise BadFrameError(f"flags {flags:#x} are not known")


def body_bytes(frame: Frame) -> int | None:
    """How many bytes must follow; None when they are JSON or text."""
    op, n, counted = frame.op, frame.count, frame.flags & Flag.COUNTS
    wide = 2 if frame.flags & SHORT else 4
    if op == Op.PULL:
        return 8 * n + (4 * n if counted else 0)
    if op == Op.PUSH:
        return 8 * n + wide * n * frame.width + (8 * n if counted else 0)
    if op == Op.ROWS:
        return wide * n * frame.width
    if op == Op.WRITE:
        return 4 * n + frame.width  # a mark for each block that may lack a gradient
    if op == Op.VALUES:
        return 4 * n
    return _rare_body_bytes(frame)


def _rare_body_bytes(frame: Frame) -> int | None:
    op, n = frame.op, frame.count
    if op in (Op.CALL, Op.ANSWER, Op.ERROR):
        return None
    sizes = {
        Op.IDS: 8 * n,
        Op.FETCH: 8 * n,
        Op.FOLLOW: VERSION_BYTES,
        Op.CHANGES: VERSION_BYTES + 8 * n,
        Op.FOUND: 8 * n + 4 * n * frame.width,
    }
    return sizes.get(op, 0)
