"""Arrays of numbers in MATLAB's file format, version 5: all that Flowers-102 needs of it.

Why not scipy: it takes more than 100 MB to read two vectors of integers. Tests hold this reader
against it.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8"}
_NUMBERS[13] = "u8"
_MATRIX, _COMPRESSED = 14, 15
_KINDS = {"f8": 6, "f4": 7, "i1": 8, "u1": 9, "i2": 10, "u2": 11, "i4": 12, "u4": 13}
_KINDS |= {"i8": 14, "u8": 15}
_HEADER = 128


def read_mat(path: Path) -> dict[str, Array]:
    """The arrays of a file by name."""
    data = path.read_bytes()
    if data[126:128] not in {b"IM", b"MI"} or len(data) <= _HEADER:
        raise ValueError(
            f"{str(path)!r} is no MATLAB file of version 5; get the original one again, or save it "
            "with -v6 or -v7."
        )
    order = "<" if data[126:128] == b"IM" else ">"
    try:
        return dict(_matrix(body, order) for body in _matrices(data[_HEADER:], order))
    except (struct.error, zlib.error, IndexError, KeyError, ValueError) as error:
        raise ValueError(
            f"{str(path)!r} is damaged, or holds more than arrays of numbers ({error}); get the "
            "original file again."
        ) from error


def write_mat(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays by name, compressed as MATLAB does it."""
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    body = b"".join(_compressed(name, array) for name, array in arrays.items())
    path.write_bytes(header + body)


def _matrices(data: bytes, order: str) -> Iterator[bytes]:
    for kind, body in _elements(data, order):
        inner = _elements(zlib.decompress(body), order) if kind == _COMPRESSED else [(kind, body)]
        yield from (found for kind, found in inner if kind == _MATRIX)


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if kind >> 16:  # up to four bytes stand in the tag itself
            kind, size = kind & 0xFFFF, kind >> 16
            yield kind, data[at + 4 : at + 4 + size]
            at += 8
        else:
            if at + 8 + size > len(data):
                raise ValueError("it ends too early")
            yield kind, data[at + 8 : at + 8 + size]
            # Everything is padded to eight bytes but what is compressed.
            at += 8 + (size if kind == _COMPRESSED else -(-size // 8) * 8)


def _matrix(body: bytes, order: str) -> tuple[str, Array]:
    _, shape, name, numbers = list(_elements(body, order))[:4]
    dimensions = np.frombuffer(shape[1], f"{order}i4")
    values = np.frombuffer(numbers[1], order + _NUMBERS[numbers[0]])
    return name[1].decode(), values.reshape(dimensions, order="F")


def _compressed(name: str, array: Array) -> bytes:
    values = np.atleast_2d(array)
    code = values.dtype.str[1:]
    kind = next(number for number, known in _NUMBERS.items() if known == code)
    parts = [
        (6, struct.pack("<II", _KINDS[code], 0)),
        (5, np.asarray(values.shape, "<i4").tobytes()),
        (1, name.encode()),
        (kind, values.astype(f"<{code}").tobytes(order="F")),
    ]
    body = b"".join(_element(kind, data) for kind, data in parts)
    packed = zlib.compress(_element(_MATRIX, body))
    return struct.pack("<II", _COMPRESSED, len(packed)) + packed


def _element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)
