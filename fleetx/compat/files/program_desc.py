"""Paddle's file of a program: a message of protocol buffers, read as data and never executed."""

import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fleetx.compat.files.tensors import FormatError, exactly, signed, varint

_LODS = 7
"""The kind of variables that hold numbers; others are lists of feeds and fetches."""


@dataclass
class Described:
    """A variable: its format by Paddle's number, and its sizes, -1 for those of the data."""

    name: str = ""
    kind: int = 5
    shape: list[int] = field(default_factory=list)
    persistable: bool = False
    holds_numbers: bool = False


@dataclass
class Operation:
    """An operator: variables by the operator's names for them, and its options."""

    type: str = ""
    inputs: dict[str, list[str]] = field(default_factory=dict)
    outputs: dict[str, list[str]] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass
class ProgramFile:
    """The first block of a program."""

    variables: dict[str, Described] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    blocks: int = 0


def parsed(data: bytes) -> ProgramFile:
    """What a file says."""
    made = ProgramFile()
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            made.blocks += 1
            if made.blocks == 1:
                _block(value, made)
    return made


def _block(data: bytes, made: ProgramFile) -> None:
    for number, value in _fields(data):
        if number == 3:
            found = _variable(value)
            made.variables[found.name] = found
        elif number == 4:
            made.operations.append(_operation(value))


def _variable(data: bytes) -> Described:
    made = Described()
    for number, value in _fields(data):
        if number == 1:
            made.name = value.decode()
        elif number == 2:
            _kind(value, made)
        elif number == 3:
            made.persistable = bool(value)
    return made


def _kind(data: bytes, made: Described) -> None:
    for number, value in _fields(data):
        if number == 1:
            made.holds_numbers = value == _LODS
        elif number == 3:
            for inner, tensor in _fields(value):
                if inner == 1:
                    _sizes(tensor, made)


def _sizes(data: bytes, made: Described) -> None:
    for number, value in _fields(data):
        if number == 1:
            made.kind = int(value)
        elif number == 2:
            made.shape += _several(value)


def _operation(data: bytes) -> Operation:
    made = Operation()
    for number, value in _fields(data):
        if number == 3:
            made.type = value.decode()
        elif number in {1, 2}:
            name, listed = _slot(value)
            (made.inputs if number == 1 else made.outputs)[name] = listed
        elif number == 4:
            name, found = _attr(value)
            made.attrs[name] = found
    return made


def _slot(data: bytes) -> tuple[str, list[str]]:
    name, listed = "", []
    for number, value in _fields(data):
        if number == 1:
            name = value.decode()
        elif number == 2:
            listed.append(value.decode())
    return name, listed


_ONE: dict[int, Callable[[Any], Any]] = {
    3: int,
    4: float,
    5: bytes.decode,
    10: bool,
    12: int,
    13: int,
    17: bytes.decode,
    19: float,
}
"""Number of a field -> what its one value is."""
_MANY: dict[int, Callable[[Any], Any]] = {
    6: int,
    7: float,
    8: bytes.decode,
    11: bool,
    15: int,
    16: float,
    18: bytes.decode,
}
"""The same for values of which there may be several."""
_LISTS = {3: 6, 4: 7, 5: 8, 7: 11, 11: 15, 12: 16, 14: 18}
"""Kind of an option that is a list -> the field that holds it, so that an empty one is known."""


def _attr(data: bytes) -> tuple[str, Any]:
    name, kind, one = "", 0, None
    many: list[Any] = []
    for number, value in _fields(data):
        if number == 1:
            name = value.decode()
        elif number == 2:
            kind = int(value)
        elif number in _ONE:
            one = _ONE[number](_number(value) if _ONE[number] is int else value)
        elif number in _MANY:
            whole = _MANY[number] in {int, bool} and isinstance(value, bytes)
            many += _several(value) if whole else [_MANY[number](_number(value))]
    return name, many if kind in _LISTS else one


def _number(value: Any) -> Any:
    return signed(value) if isinstance(value, int) else value


def _several(value: Any) -> list[int]:
    """Whole numbers, one by one or packed."""
    if not isinstance(value, bytes):
        return [signed(value)]
    stream, found = io.BytesIO(value), []
    while (number := varint(stream)) is not None:
        found.append(signed(number))
    return found


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: a number, a fraction or bytes."""
    if not isinstance(data, bytes):
        raise FormatError("a part of a program is a number, where a message is meant.")
    stream = io.BytesIO(data)
    while (key := varint(stream)) is not None:
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint(stream) or 0
        elif kind == 1:
            yield number, struct.unpack("<d", exactly(stream, 8))[0]
        elif kind == 2:
            yield number, exactly(stream, varint(stream) or 0)
        elif kind == 5:
            yield number, struct.unpack("<f", exactly(stream, 4))[0]
        else:
            raise FormatError(f"a program has a field of kind {kind}.")
