"""Rows whose weights are kept in two bytes or in one; the rule's state stays float32.

A rule computes in float32, and what it moved is rounded back. To the nearest number that would lose
every step smaller than half of the distance to it, so a row would stand still. Hence it is rounded
up or down by chance, so that it is right in the mean: small steps add up. The chance follows from
the id and the number of the update, so that a log that is replayed gives the same rows.
"""

from abc import ABC, abstractmethod
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fleetx.ps.tables.arena import Arena
from fleetx.ps.tables.hashing import STRIDE, mixed
from fleetx.ps.tables.initializers import Initializer
from fleetx.ps.tables.row_store import Column, Drawn, RowStore
from fleetx.ps.tables.rules import Rule
from fleetx.ps.wire.arrays import Array, Floats, Ids

Noise = NDArray[np.uint16]


class _Kept(NamedTuple):
    """What is kept of weights."""

    numbers: Array
    scales: Array
    """Powers of two, one for each row, or none."""


class _Format(ABC):
    dtype: type[np.generic]
    scales = 0
    """Numbers of a row beside its weights."""

    @abstractmethod
    def kept(self, weights: Floats, noise: Noise | None) -> _Kept:
        """Rounded to the nearest, or by chance."""

    @abstractmethod
    def weights(self, kept: _Kept) -> Floats:
        """In float32 again."""


def _unscaled(numbers: Array) -> _Kept:
    return _Kept(numbers, np.empty((len(numbers), 0), np.int8))


class _Float16(_Format):
    dtype = np.float16
    largest = np.float32(np.finfo(np.float16).max)

    @override
    def kept(self, weights: Floats, noise: Noise | None) -> _Kept:
        if noise is not None:
            # Of a float32 13 bits are too many; numbers below 6e-5 lose more, to the nearest.
            cut = np.uint32(0x1FFF)
            weights = ((_bits(weights) + (noise & cut)) & ~cut).view(np.float32)
        # An infinity would stay in the row for ever; the largest number is what was meant.
        bounded = np.clip(weights, -self.largest, self.largest)
        return _unscaled(bounded.astype(np.float16))

    @override
    def weights(self, kept: _Kept) -> Floats:
        return kept.numbers.astype(np.float32)


class _BFloat16(_Format):
    dtype = np.uint16

    @override
    def kept(self, weights: Floats, noise: Noise | None) -> _Kept:
        bits = _bits(weights)
        up = (
            np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)) if noise is None else noise
        )
        return _unscaled(((bits + up) >> np.uint32(16)).astype(np.uint16))

    @override
    def weights(self, kept: _Kept) -> Floats:
        return (kept.numbers.astype(np.uint32) << np.uint32(16)).view(np.float32)


class _Int8(_Format):
    """Whole numbers times a power of two for each row.

    A power of two, so that a row whose scale changes keeps its numbers wherever they have room:
    with any other one each change would round all of them anew, and errors would add up. And the
    scale follows from the weights alone, so it need not be saved.
    """

    dtype, scales = np.int8, 1
    largest = np.float32(127)

    @override
    def kept(self, weights: Floats, noise: Noise | None) -> _Kept:
        share, powers = np.frexp(np.abs(weights).max(1, keepdims=True) / self.largest)
        powers = np.clip(powers - (share == np.float32(0.5)), -126, 127).astype(np.int8)
        exact = weights * _power(-powers)
        if noise is None:
            whole = np.rint(exact)
        else:
            whole = np.floor(exact + noise.astype(np.float32) / np.float32(1 << 16))
        bounded = np.clip(whole, -self.largest, self.largest)
        return _Kept(bounded.astype(np.int8), powers)

    @override
    def weights(self, kept: _Kept) -> Floats:
        return kept.numbers.astype(np.float32) * _power(kept.scales)


def _power(of_two: Array) -> Floats:
    return np.ldexp(np.float32(1), of_two)


_FORMATS: dict[str, _Format] = {
    "float16": _Float16(),
    "bfloat16": _BFloat16(),
    "int8": _Int8(),
}


class QuantisedRows(RowStore):
    """A ``RowStore`` whose weights take less room; whole ones have a scale for each row."""

    def __init__(self, dim: int, rule: Rule, *, counted: bool, dtype: str) -> None:
        self._format = _FORMATS[dtype]
        super().__init__(dim, rule, counted=counted)
        self._scales = Column(Arena(self._format.scales, np.int8), 0, self._format.scales)

    @override
    def _laid_out(self, dim: int, kept: int) -> tuple[Column, Column]:
        weights = Column(Arena(dim, self._format.dtype), 0, dim)
        return weights, Column(Arena(kept, np.float32), 0, kept)

    @property
    @override
    def columns(self) -> dict[str, Column]:
        return super().columns | {"scales": self._scales}

    @override
    def gather(self, kernels: ModuleType, slots: Ids, out: Floats) -> None:
        out[...] = self.weights_of(slots)

    @override
    def begin(
        self, kernels: ModuleType, slots: Ids, ids: Ids, first: Initializer, seed: int
    ) -> None:
        self.set_weights(slots, first.rows(ids, self.weights.width, seed))

    @override
    def weights_of(self, slots: Ids) -> Floats:
        return self._format.weights(_Kept(self.weights.array[slots], self._scales.array[slots]))

    @override
    def put_weights(self, records: Array, weights: Floats) -> None:
        records["weights"], records["scales"] = self._format.kept(weights, None)

    @override
    def weights_in(self, records: Array) -> Floats:
        return self._format.weights(_Kept(records["weights"], records["scales"]))

    @override
    def set_weights(self, slots: Ids, weights: Floats) -> None:
        self._keep(slots, weights, None)

    def _keep(self, slots: Ids, weights: Floats, noise: Noise | None) -> None:
        kept = self._format.kept(weights, noise)
        self.weights.array[slots], self._scales.array[slots] = kept

    @override
    def apply(
        self, kernels: ModuleType, slots: Ids, gradients: Floats, rate: float, drawn: Drawn
    ) -> None:
        # A rule moves rows that lie side by side with their state.
        dim = self.weights.width
        whole = np.concatenate([self.weights_of(slots), self.state.array[slots]], axis=1)
        self._rule.apply(kernels, (whole, whole, dim), np.arange(len(slots)), gradients, rate)
        self.state.array[slots] = whole[:, dim:]
        self._keep(slots, np.ascontiguousarray(whole[:, :dim]), _noise(drawn, dim))

    @override
    def add(self, kernels: ModuleType, slots: Ids, delta: Floats, drawn: Drawn) -> None:
        self._keep(slots, self.weights_of(slots) + delta, _noise(drawn, self.weights.width))


def _bits(weights: Floats) -> NDArray[np.uint32]:
    return np.ascontiguousarray(weights, np.float32).view(np.uint32)


def _noise(drawn: Drawn, columns: int) -> Noise:
    """Numbers below 2**16, one for each weight; four from each hash."""
    words = -(-columns // 4)
    start = mixed(drawn.ids)[:, None] + mixed(np.array([drawn.update], np.int64))
    steps = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(STRIDE)
    noise: Noise = mixed(start + steps).view(np.uint16)[:, :columns]
    return noise
