"""Checksums of what is kept on the disk, so that a flipped bit never becomes a number of a table.

XXH3 and XXH64, from the package ``xxhash``: they read memory about as fast as it can be read.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64, xxh3_64_hexdigest, xxh64, xxh64_intdigest

from fleetx.ps.wire.arrays import Array

KEY = "checksum"
"""Under this name a JSON file holds the checksum of its other values."""

SHORT = 1 << 16
"""Bytes below which XXH64 is cheaper: wide vector instructions slow down what runs after them."""


class DamagedError(ValueError):
    """What lies on the disk is not what was written: it changed, is missing, or is of another."""


def of_parts(*parts: bytes | memoryview, seed: int = 0) -> int:
    """The checksum of bytes, one behind the other."""
    length = sum(map(len, parts))
    if len(parts) == 1 and length < SHORT:
        return of_short(parts[0], seed)
    return of_views(parts, length, seed)


def of_short(part: bytes | memoryview, seed: int) -> int:
    """The checksum of a few bytes."""
    return xxh64_intdigest(part, seed)


def of_views(parts: Iterable[bytes | memoryview], length: int, seed: int) -> int:
    """The checksum of bytes whose length is known, one behind the other."""
    state = (xxh64 if length < SHORT else xxh3_64)(seed=seed)
    for part in parts:
        state.update(part)
    return state.intdigest()


def of_arrays(arrays: Mapping[str, Array]) -> str:
    """The checksum of named arrays: names, kinds, shapes and numbers."""
    state = xxh3_64()
    for name in sorted(arrays):
        array = arrays[name]
        state.update(f"{name} {array.dtype.str} {array.shape};".encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def of_plain(value: Mapping[str, Any]) -> str:
    """The checksum of plain data, however it is spaced and ordered in a file."""
    # Once there and back, since JSON has only texts as keys.
    plain = json.loads(json.dumps(dict(value)))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return xxh3_64_hexdigest(text.encode())


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data with its checksum."""
    return {**value, KEY: of_plain(value)}


def opened(value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Plain data without its checksum, which must be right."""
    found = value.pop(KEY, None)
    if found is None:
        raise DamagedError(
            f"{path} has no checksum: it was written by fleetx 0.1.0, which knew none, or it is "
            "damaged"
        )
    if found != of_plain(value):
        raise DamagedError(f"{path} is damaged: its checksum is not that of what it says")
    return value
