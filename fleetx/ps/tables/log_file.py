"""The form of a log on the disk: a head, then records, each with checksums of all it says."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fleetx.ps.tables import checksums
from fleetx.ps.tables.checksums import DamagedError

_FILE = struct.Struct("<8s16sQ")
"""What it is, of which journal, and the number of its first record; a checksum follows."""
_HEAD = struct.Struct("<IIQQQ")
"""What it is, kind, number, length and checksum of the data; a checksum of the head follows."""
_WORD = struct.Struct("<Q")
_HEAD_BYTES = _HEAD.size + _WORD.size
FILE_HEAD, RECORD_EXTRA = _FILE.size + _WORD.size, _HEAD_BYTES + _WORD.size
"""Bytes that a file has before its records, and a record beside its data."""
_FILE_MAGIC, _MAGIC, _OLD_MAGIC = b"fleetxL2", 0x324F4746, b"FGOL"


class Record(NamedTuple):
    """One change."""

    number: int
    kind: int
    data: memoryview


def file_head(identity: str, first: int) -> bytes:
    """How a file begins."""
    head = _FILE.pack(_FILE_MAGIC, bytes.fromhex(identity), first)
    return head + _WORD.pack(checksums.of_parts(head))


def record_bytes(
    kind: int, number: int, views: list[memoryview], length: int, seed: int
) -> list[bytes | memoryview]:
    """The pieces of a record, to be written in this order: who dies meanwhile leaves no tail.

    Args:
        kind: what the data means.
        number: of the record in its journal.
        views: the data.
        length: of all of it.
        seed: of the journal, so that a record of another one does not fit.
    """
    head = _HEAD.pack(_MAGIC, kind, number, length, checksums.of_views(views, length, seed))
    return [head + _WORD.pack(checksums.of_short(head, seed)), *views, _tail(number)]


def seed_of(identity: str) -> int:
    """What the checksums of a journal begin with."""
    return int(identity[:16], 16)


def _tail(number: int) -> bytes:
    return _WORD.pack(~number & 0xFFFFFFFFFFFFFFFF)


def check_head(path: Path, data: memoryview, identity: str) -> int:
    """The number of the first record of a file, which must be one of this journal."""
    head = bytes(data[:FILE_HEAD])
    if head[:4] == _OLD_MAGIC:
        raise DamagedError(f"{path} was written by fleetx 0.1.0, whose logs have no checksums")
    fields = head[: _FILE.size]
    if len(head) < FILE_HEAD or _WORD.pack(checksums.of_parts(fields)) != head[_FILE.size :]:
        raise DamagedError(f"{path} is damaged at byte 0: its head is not one of a log")
    _, journal, first = _FILE.unpack(fields)
    if journal.hex() != identity:
        raise DamagedError(f"{path} belongs to another log than the files beside it")
    assert isinstance(first, int)
    return first


def records(path: Path, data: memoryview, identity: str) -> Iterator[Record]:
    """Those of a file, up to its end or to where a dying process was interrupted.

    ``DamagedError`` where bytes are neither a record nor what such a process leaves: the beginning
    of one, and nothing but zeros behind it.
    """
    seed, at, number = seed_of(identity), FILE_HEAD, check_head(path, data, identity)
    while (length := _length(path, data, at, number, seed)) is not None:
        begin = at + _HEAD_BYTES
        kind = _HEAD.unpack(data[at : at + _HEAD.size])[1]
        yield Record(number, kind, data[begin : begin + length])
        at, number = begin + length + _WORD.size, number + 1


def _length(path: Path, data: memoryview, at: int, number: int, seed: int) -> int | None:
    """The length of the record at a place, or None where the records end."""
    head = bytes(data[at : at + _HEAD.size])
    begin = at + _HEAD_BYTES
    right = _WORD.pack(checksums.of_parts(head, seed=seed))
    if len(data) < begin or data[at + _HEAD.size : begin] != right:
        if _zeros(data[begin:]):
            return None  # nothing, or a part of a head
        raise _damaged(path, data, at, number, "the head of a record")
    magic, _, named, length, checksum = _HEAD.unpack(head)
    if (magic, named) != (_MAGIC, number):
        raise _damaged(path, data, at, number, f"record {named} where it belongs")
    end = begin + length
    tail = bytes(data[end : end + _WORD.size])
    if tail != _tail(number):
        if _begins(tail, _tail(number)) and _zeros(data[end + _WORD.size :]):
            return None  # its writer died: nobody was told that it is there
        raise _damaged(path, data, at, number, "the end of a record")
    if checksums.of_parts(data[begin:end], seed=seed) != checksum:
        raise _damaged(path, data, at, number, "what was written")
    assert isinstance(length, int)
    return length


def _begins(part: bytes, whole: bytes) -> bool:
    """Whether bytes are the first ones of others, with zeros in place of the rest."""
    return whole.startswith(part.rstrip(b"\0"))


def _zeros(data: memoryview) -> bool:
    return not np.frombuffer(data, np.uint8).any()


def _damaged(path: Path, data: memoryview, at: int, number: int, what: str) -> DamagedError:
    text = f"{path} is damaged at byte {at}: record {number} is not {what}"
    return DamagedError(
        f"{text}. If this machine lost its power and nothing else happened, the writing of this "
        f"record may have been cut short: then `truncate -s {at} {path}` keeps all before it"
    )
