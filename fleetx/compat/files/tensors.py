"""Paddle's file of a tensor: a version, its lod, a description and the raw numbers."""

import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from fleetx.record.recording_state import paused

BFLOAT16 = 22
NUMPY: dict[int, type[np.generic]] = {
    0: np.bool_,
    1: np.int16,
    2: np.int32,
    3: np.int64,
    4: np.float16,
    5: np.float32,
    6: np.float64,
    20: np.uint8,
    21: np.int8,
    23: np.complex64,
    24: np.complex128,
}
"""The numbers that Paddle gives to formats, in files."""
NUMBERS = {np.dtype(kind): number for number, kind in NUMPY.items()}
_LARGEST = 1 << 40
"""More bytes than any tensor has: a length above this is that of another file."""


class FormatError(ValueError):
    """A file is not what it should be."""


@dataclass
class TensorDesc:
    """Format and sizes, as a message of protocol buffers."""

    data_type: int = 5
    dims: list[int] = field(default_factory=list)

    def ParseFromString(self, data: bytes) -> int:
        """Read the two fields; others are passed over."""
        stream, self.dims = io.BytesIO(data), []
        while (key := varint(stream)) is not None:
            number, kind = key >> 3, key & 7
            if kind == 0:
                value = varint(stream) or 0
                if number == 1:
                    self.data_type = value
                elif number == 2:
                    self.dims.append(signed(value))
            elif kind == 2:
                inner = io.BytesIO(exactly(stream, varint(stream) or 0))
                while number == 2 and (value := varint(inner)) is not None:  # type: ignore[assignment]
                    self.dims.append(signed(value))
            else:
                raise FormatError(f"a description of a tensor has a field of kind {kind}.")
        return len(data)

    def SerializeToString(self) -> bytes:
        """The message."""
        sizes = b"".join(b"\x10" + _as_varint(size) for size in self.dims)
        return b"\x08" + _as_varint(self.data_type) + sizes


def varint(stream: BinaryIO) -> int | None:
    """The next number of a message; None at its end."""
    value = shift = 0
    while True:
        byte = stream.read(1)
        if not byte:
            if shift:
                raise FormatError("the file ends inside of a number.")
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
        if shift > 63:
            raise FormatError("a number of the file is too long.")


def _as_varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def signed(value: int) -> int:
    """A number of 64 bits that may be below zero."""
    return value - (1 << 64) if value >= 1 << 63 else value


def exactly(stream: BinaryIO, count: int) -> bytes:
    """So many bytes, or an error."""
    if not 0 <= count < _LARGEST:
        raise FormatError(f"a part of the file would have {count} bytes.")
    found = stream.read(count)
    if len(found) < count:
        raise FormatError(f"the file ends {count - len(found)} bytes too early.")
    return found


def _numbers(stream: BinaryIO, form: str) -> tuple[int, ...]:
    return struct.unpack(f"<{form}", exactly(stream, struct.calcsize(f"<{form}")))


def read_one(stream: BinaryIO) -> tuple[Tensor, list[list[int]]]:
    """The next tensor of a stream, and its lod."""
    (version,) = _numbers(stream, "I")
    if version != 0:
        raise FormatError(f"version {version} of the format is not known.")
    (levels,) = _numbers(stream, "Q")
    if levels > 16:
        raise FormatError(f"a tensor of {levels} levels of lod is none.")
    lod = []
    for _ in range(levels):
        (size,) = _numbers(stream, "Q")
        lod.append([int(n) for n in np.frombuffer(exactly(stream, size), "<u8")])
    version, size = _numbers(stream, "Ii")
    if version != 0 or size < 0:
        raise FormatError(f"version {version} of the format is not known.")
    desc = TensorDesc()
    desc.ParseFromString(exactly(stream, size))
    return _data(stream, desc), lod


def _data(stream: BinaryIO, desc: TensorDesc) -> Tensor:
    if any(size < 0 for size in desc.dims):
        raise FormatError(f"a tensor has the sizes {desc.dims}.")
    count = int(np.prod(desc.dims, dtype=object)) if desc.dims else 1
    if desc.data_type == BFLOAT16:
        raw = np.frombuffer(exactly(stream, 2 * count), "<i2").copy()
        return torch.from_numpy(raw).view(torch.bfloat16).reshape(desc.dims)
    if desc.data_type not in NUMPY:
        raise FormatError(f"numbers of kind {desc.data_type} are not known.")
    kind = np.dtype(NUMPY[desc.data_type]).newbyteorder("<")
    raw = np.frombuffer(exactly(stream, kind.itemsize * count), kind).copy()
    return torch.from_numpy(raw).reshape(desc.dims)


def is_tensor_file(path: Path) -> bool:
    """Whether a file begins as Paddle's tensors do."""
    try:
        with path.open("rb") as stream:
            read_one(stream)
    except (FormatError, OSError):
        return False
    return True


def read(path: Path) -> Tensor:
    """The one tensor of a file."""
    found = read_all(path)
    if len(found) != 1:
        raise FormatError(
            f"{str(path)!r} holds {len(found)} tensors, not one; if it is one file for "
            "everything, name it by filename."
        )
    return found[0]


def read_all(path: Path) -> list[Tensor]:
    """Every tensor of a file; names are not in it."""
    return list(_each(path))


def _each(path: Path) -> Iterator[Tensor]:
    with path.open("rb") as stream:
        while stream.peek(1):
            try:
                yield read_one(stream)[0]
            except FormatError as error:
                raise FormatError(
                    f"{str(path)!r} is no file of tensors of Paddle: {error}"
                ) from None


def packed(tensor: Tensor, lod: Sequence[Sequence[int]] = ()) -> bytes:
    """A tensor as a file has it."""
    with paused():  # a script may save while it writes a program, and this is no part of it
        return _packed(tensor.detach().cpu().contiguous(), lod)


def _packed(value: Tensor, lod: Sequence[Sequence[int]]) -> bytes:
    if value.dtype == torch.bfloat16:
        number, raw = BFLOAT16, value.view(torch.int16).numpy().tobytes()
    else:
        array = value.numpy()
        number, raw = NUMBERS[array.dtype], array.tobytes()
    desc = TensorDesc(number, list(value.shape)).SerializeToString()
    levels = [np.asarray(level, "<u8").tobytes() for level in lod]
    described = b"".join(struct.pack("<Q", len(level)) + level for level in levels)
    head = struct.pack("<IQ", 0, len(levels)) + described
    return head + struct.pack("<Ii", 0, len(desc)) + desc + raw


def write(path: Path, tensor: Tensor) -> None:
    """One tensor as one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(packed(tensor))
    part.replace(path)


def write_all(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Many tensors in one file, in the order of their names, as Paddle writes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as stream:
        for name in sorted(tensors):
            stream.write(packed(tensors[name]))
    part.replace(path)
