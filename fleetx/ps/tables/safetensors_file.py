"""Arrays in a file that plain safetensors reads, written without copying them."""

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps.wire.arrays import Array

_NAMES = {"int64": "I64", "float32": "F32", "int32": "I32", "float64": "F64", "uint8": "U8"}
_TYPES = {name: np.dtype(kind) for kind, name in _NAMES.items()}


def write(path: Path, arrays: Mapping[str, Array], notes: Mapping[str, str] | None = None) -> None:
    """Write all of it or nothing: a reader never sees half a file under this name."""
    header: dict[str, Any] = {"__metadata__": dict(notes)} if notes else {}
    begin = 0
    for name, array in arrays.items():
        end = begin + array.nbytes
        kind = _NAMES[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            if array.size:
                file.write(np.ascontiguousarray(array).data.cast("B"))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read(path: Path) -> dict[str, Array]:
    """All arrays of a file, checked against its size; they live as long as they are used."""
    views = _views(path)
    return {name: np.array(view) for name, view in views.items()}


def check(path: Path) -> None:
    """Raise ``ValueError`` where ``read`` would; costs no more than reading the header."""
    _views(path)


def _views(path: Path) -> dict[str, Array]:
    try:
        data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        (length,) = struct.unpack("<Q", bytes(data[:8]))
        header: dict[str, Any] = json.loads(bytes(data[8 : 8 + length]))
        body = data[8 + length :]
        header.pop("__metadata__", None)
        return {name: _view(body, entry) for name, entry in header.items()}
    except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error})") from None


def _view(body: Array, entry: Mapping[str, Any]) -> Array:
    begin, end = entry["data_offsets"]
    kind, shape = _TYPES[entry["dtype"]], tuple(entry["shape"])
    if not 0 <= begin <= end <= len(body):
        raise ValueError("an array lies outside of it")
    return np.frombuffer(body[begin:end], kind).reshape(shape)
