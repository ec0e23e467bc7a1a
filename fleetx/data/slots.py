"""Text records of slots, as columns: for each slot all values, and how many each record has."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetx.expected import a, expect

Array = NDArray[Any]
_INDENTED = tuple(b"\n" + white for white in (b"\n", b" ", b"\t", b"\r"))
"""Only behind these may a blank line be; to look for them costs next to nothing."""


@dataclass(frozen=True)
class Slot:
    """A named part of every record: ids (``int64``) or numbers (``float32``).

    Ids are any 64 bits; text may hold those from 2**63 up with a sign or without.
    """

    name: str
    dtype: str = "int64"

    def __post_init__(self) -> None:
        expect("fleet.Slot", "name", self.name, a(str, "a string"))
        if self.dtype not in ("int64", "float32"):
            raise ValueError(f"slot {self.name!r} is {self.dtype!r}; use 'int64' or 'float32'")

    @staticmethod
    def of(entry: Any) -> "Slot":
        """A slot by the name of its ids, by itself, or by the input of a program that takes it."""
        if isinstance(entry, Slot):
            return entry
        if isinstance(entry, str):
            return Slot(entry)
        name = getattr(entry, "name", None)
        if not isinstance(entry, Tensor) or name is None:
            raise TypeError(
                f"use_var has {entry!r}, which is no slot; list names, fleet.Slot(name, dtype) or "
                "what static.data() returned"
            )
        return Slot(name, str(entry.dtype).removeprefix("torch."))


class _Slotted(NamedTuple):
    values: Tensor
    offsets: Tensor


class Ragged(_Slotted):
    """The values of one slot in a batch, and where each record's begin."""

    even: bool | None = None
    """Whether all records have equally many; None asks the offsets, and waits for their device."""

    def dense(self) -> Tensor:
        """One row for each record, when all have equally many values."""
        records = len(self.offsets)
        width = len(self.values) // max(records, 1)
        if self.even is None:
            begins = torch.arange(records, device=self.offsets.device) * width
            self.even = torch.equal(self.offsets, begins)
        if not self.even:
            raise ValueError(
                "records of this slot differ in length, so they make no rectangle; look values up "
                "with SparseEmbedding(..., pooling='sum')(values, offsets)"
            )
        return self.values.reshape(records, width)


class Records:
    """Some records, in columns."""

    def __init__(self, columns: Sequence[tuple[Array, Array]]) -> None:
        self.columns = list(columns)
        """Values and lengths of each slot."""

    def __len__(self) -> int:
        return len(self.columns[0][1]) if self.columns else 0

    def take(self, chosen: Array) -> "Records":
        """These records, in this order."""
        return Records([_taken(values, lengths, chosen) for values, lengths in self.columns])

    @staticmethod
    def joined(parts: Sequence["Records"]) -> "Records":
        """One behind the other."""
        pairs = zip(*(part.columns for part in parts), strict=True)
        return Records(
            [tuple(np.concatenate(arrays) for arrays in zip(*p, strict=True)) for p in pairs]  # type: ignore[misc]
        )

    def batch(self, slots: Sequence[Slot], device: torch.device | None = None) -> dict[str, Ragged]:
        """All of them as tensors, on a device or the CPU."""
        arrays = []
        for values, lengths in self.columns:
            begins = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
            arrays += [torch.from_numpy(values), torch.from_numpy(begins)]
        tensors = arrays if device is None or device.type == "cpu" else _sent(arrays, device)
        found = {}
        pairs = zip(slots, self.columns, tensors[::2], tensors[1::2], strict=True)
        for slot, (_, lengths), each, offsets in pairs:
            found[slot.name] = ragged = Ragged(each, offsets)
            ragged.even = bool((lengths == lengths[:1]).all())
        return found

    def packed(self) -> bytes:
        """For another worker."""
        arrays = [array for column in self.columns for array in column]
        buffer = io.BytesIO()
        np.savez(buffer, *arrays)
        return buffer.getvalue()

    @staticmethod
    def unpacked(data: bytes) -> "Records":
        """What ``packed`` made; nothing is unpickled."""
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays = [found[f"arr_{i}"] for i in range(len(found.files))]
        return Records(list(zip(arrays[::2], arrays[1::2], strict=True)))


def _sent(vectors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The same on a device; one copy for each type, since many small ones take longer."""
    found = list(vectors)
    for kind in {vector.dtype for vector in vectors}:
        chosen = [at for at, vector in enumerate(vectors) if vector.dtype == kind]
        whole = torch.cat([vectors[at] for at in chosen]).to(device, non_blocking=True)
        parts = whole.split([len(vectors[at]) for at in chosen])
        for at, part in zip(chosen, parts, strict=True):
            found[at] = part
    return found


def _taken(values: Array, lengths: Array, chosen: Array) -> tuple[Array, Array]:
    begins = np.cumsum(lengths) - lengths
    new = lengths[chosen]
    # Positions within all values: each record's begin, and the count within the record.
    within = np.arange(int(new.sum())) - np.repeat(np.cumsum(new) - new, new)
    return values[np.repeat(begins[chosen], new) + within], new


def parse(text: bytes, slots: Sequence[Slot], where: str) -> Records:
    """Records from lines of ``count value ... count value ...``, one group for each slot."""
    if text[:1].isspace() or any(mark in text for mark in _INDENTED):
        text = b"\n".join(line for line in text.split(b"\n") if line.strip())
    words = np.array(text.split())
    lines = text.count(b"\n") + (not text.endswith(b"\n") and bool(text))
    if len(words) == 0:
        return Records([(_empty(slot), np.empty(0, np.int64)) for slot in slots])
    try:
        regular = _regular(words, slots, lines)
        return regular if regular is not None else _walk(text, slots)
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(
            f"{where} does not hold {len(slots)} slots a line as 'count value value ...' "
            f"({error}); check use_var and the data generator"
        ) from None


def _empty(slot: Slot) -> Array:
    return np.empty(0, slot.dtype)


def _values(words: Array, slot: Slot) -> Array:
    try:
        return words.astype(slot.dtype)
    except OverflowError:
        if slot.dtype != "int64":
            raise
    # Ids from 2**63 up: the same bits as the negative ones.
    words = np.ascontiguousarray(words)
    signed = words.view(np.uint8).reshape(len(words), -1)[:, 0] == ord("-")
    found = np.empty(len(words), np.int64)
    found[signed] = words[signed].astype(np.int64)
    found[~signed] = words[~signed].astype(np.uint64).view(np.int64)
    return found


def _regular(words: Array, slots: Sequence[Slot], lines: int) -> Records | None:
    """The usual case at full speed: every line has the same lengths."""
    if len(words) % lines:
        return None
    table = words.reshape(lines, -1)
    columns, at = [], 0
    for slot in slots:
        count = int(table[0, at]) if at < table.shape[1] else -1
        if count < 0 or not (table[:, at] == table[0, at]).all():
            return None
        values = _values(table[:, at + 1 : at + 1 + count].reshape(-1), slot)
        columns.append((values, np.full(lines, count, np.int64)))
        at += 1 + count
    return Records(columns) if at == table.shape[1] else None


def _walk(text: bytes, slots: Sequence[Slot]) -> Records:
    values: list[list[bytes]] = [[] for _ in slots]
    lengths: list[list[int]] = [[] for _ in slots]
    for line in text.splitlines():
        words = line.split()
        at = 0
        for index in range(len(slots)):
            count = int(words[at])
            if count < 0 or at + 1 + count > len(words):
                raise ValueError(f"a line ends within slot {slots[index].name!r}")
            values[index] += words[at + 1 : at + 1 + count]
            lengths[index].append(count)
            at += 1 + count
        if at != len(words):
            raise ValueError("a line has more words than its slots")
    return Records(
        [
            (_values(np.array(v or [b"0"]), slot)[: len(v)], np.array(n, np.int64))
            for slot, v, n in zip(slots, values, lengths, strict=True)
        ]
    )
