"""Arrays in safetensors files, written all or nothing and read without holding up other threads.

The package does both halves of the work; what it does not do is added here. ``save_file`` does not
wait for the disk, and some versions write under the final name at once, so a server that dies
meanwhile would leave half a file. ``load_file`` keeps the interpreter's lock for the whole of an
array, which may be a gigabyte: meanwhile a server would hear no heartbeat, and take its workers for
dead.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fleetx.ps.tables import checksums
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.wire.arrays import Array

KEY = "xxh3_64"
"""Under this name the metadata of a file hold the checksum of its arrays."""
_BESIDE = "beside"
PIECE = 1 << 24
"""Bytes that are read at once; other threads come in between."""


def write(path: Path, arrays: Mapping[str, Array], *, beside: str = "") -> str:
    """Write all of it or nothing: a reader never sees half a file under this name.

    Returns the checksum of the arrays, which is also in the file.

    Args:
        path: the file.
        arrays: what it holds.
        beside: the checksum of what belongs to it and lies in other files.
    """
    partial = path.with_name(f"{path.name}.partial")
    # The package takes the address of an array and believes its rows to be neighbours. A plain
    # array even of a single number, for a numpy scalar has no address.
    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    checksum = checksums.of_arrays(plain)
    try:
        save_file(plain, partial, metadata={KEY: checksum} | ({_BESIDE: beside} if beside else {}))
    except SafetensorError as error:  # a full disk, which callers know as what it is
        raise OSError(f"{partial} cannot be written ({error})") from error
    with partial.open("rb") as file:
        os.fsync(file.fileno())  # all of the file, whoever wrote it
    os.replace(partial, path)
    return checksum


def read(path: Path, checksum: str | None = None, *, sealed: bool = True) -> dict[str, Array]:
    """All arrays of a file, as copies; ``DamagedError`` unless they are as they were written.

    Args:
        path: the file.
        checksum: what somebody else knows of the arrays, so that no other file takes their place.
        sealed: whether the file must hold a checksum itself; those of fleetx 0.1.0 do not.
    """
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: _read(file, name) for name in file.keys()}  # noqa: SIM118 - no mapping
            kept = (file.metadata() or {}).get(KEY)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from None
    except (ValueError, TypeError) as error:  # a damaged head may name dtypes that numpy lacks
        raise _damaged(path, error) from None
    if sealed or kept is not None:
        _check(path, arrays, kept, checksum)
    return arrays


def beside(path: Path) -> str:
    """The checksum of what belongs to a file and lies in others; "" if it names none."""
    try:
        with safe_open(path, framework="np") as file:
            return str((file.metadata() or {}).get(_BESIDE, ""))
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from None


def _check(path: Path, arrays: dict[str, Array], kept: str | None, known: str | None) -> None:
    found = checksums.of_arrays(arrays)
    if kept != found:
        what = "it has no checksum" if kept is None else "its checksum is not that of its arrays"
        raise DamagedError(f"{path} is damaged, or was not written by this version: {what}")
    if known not in (None, found):
        raise DamagedError(f"{path} is whole, but of another save than the files beside it")


def _damaged(path: Path, error: Exception) -> DamagedError:
    return DamagedError(f"{path} is not a whole safetensors file ({error})")


def _read(file: Any, name: str) -> Array:
    found = file.get_slice(name)
    shape = found.get_shape()
    if not shape or 0 in shape:
        whole: Array = file.get_tensor(name)
        return whole
    array: Array = np.empty(shape, found[:1].dtype)
    rows = max(1, PIECE // array[:1].nbytes)
    for begin in range(0, len(array), rows):
        end = min(begin + rows, len(array))
        array[begin:end] = found[begin:end]
    return array
