"""``LoDTensor``: rows of several sequences behind each other, and where each of them begins."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fleetx.compat.arrays import scalar_like
from fleetx.compat.sizes import CalledSizes
from fleetx.static.run.arrays import as_array

Lod = list[list[int]]


class LoDTensor:
    """Numbers that a script fills by itself, to feed or to put into a scope."""

    def __init__(self, value: Any = None, lod: Lod | None = None) -> None:
        self._value: torch.Tensor | None = None
        if isinstance(value, torch.Tensor):
            self._value = value.detach()
        elif value is not None:
            self._value = torch.as_tensor(np.asarray(value))
        self._lod: Lod = [list(level) for level in lod or []]

    def set(self, array: Any, place: Any = None) -> None:
        """Take these numbers."""
        self._value = torch.as_tensor(np.array(array))

    def tensor(self) -> torch.Tensor:
        """The numbers."""
        if self._value is None:
            raise ValueError("the LoDTensor holds nothing yet; call set(array, place) first.")
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(as_array(self.tensor()), dtype=dtype)

    def numpy(self) -> np.ndarray:
        """The numbers as an array."""
        return scalar_like(np.asarray(self))  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.tensor())

    def __getitem__(self, at: Any) -> Any:
        return self.numpy()[at]

    @property
    def shape(self) -> CalledSizes:
        """The sizes: programs of Paddle call them, eager code reads them."""
        return CalledSizes([] if self._value is None else self._value.shape)

    def _get_dims(self) -> list[int]:
        return list(self.shape)

    @property
    def dtype(self) -> Any:
        """The format of the numbers."""
        return self.tensor().dtype

    def _dtype(self) -> Any:
        return self.dtype

    def _is_initialized(self) -> bool:
        return True if type(self) is not LoDTensor else self._value is not None

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Where each sequence begins, and the end: [[0, 2, 5]]."""
        self._lod = [[int(n) for n in level] for level in lod]

    def lod(self) -> Lod:
        """The same."""
        return self._lod

    def set_recursive_sequence_lengths(self, lengths: Sequence[Sequence[int]]) -> None:
        """How long each sequence is: [[2, 3]]."""
        self._lod = [[0, *(int(n) for n in np.cumsum(level))] for level in lengths]

    def recursive_sequence_lengths(self) -> Lod:
        """The same."""
        return [[int(n) for n in np.diff(level)] for level in self._lod]

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Whether the sequences end where the rows end."""
        return not self._lod or self._lod[-1][-1] == len(self)


Tensor = LoDTensor


class LoDTensorArray(list[LoDTensor]):
    """Several of them."""


def create_lod_tensor(
    data: Any, recursive_seq_lens: Sequence[Sequence[int]], place: Any = None
) -> LoDTensor:
    """A tensor with sequences of these lengths; lists of numbers become rows of one."""
    if isinstance(data, LoDTensor):
        return create_lod_tensor(np.asarray(data), recursive_seq_lens, place)
    if isinstance(data, list):
        data = np.concatenate([np.asarray(row) for row in data]).reshape(-1, 1)
    made = LoDTensor(data)
    made.set_recursive_sequence_lengths(recursive_seq_lens)
    if not made.has_valid_recursive_sequence_lengths():
        raise ValueError(
            f"create_lod_tensor(): lengths {recursive_seq_lens} are not those of {len(made)} rows; "
            "they must add up to the rows."
        )
    return made


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]],
    base_shape: Sequence[int],
    place: Any,
    low: int,
    high: int,
) -> LoDTensor:
    """Random whole numbers, ``high`` included."""
    rows = sum(recursive_seq_lens[-1])
    drawn = np.random.randint(low, high + 1, [rows, *base_shape]).astype("int64")
    return create_lod_tensor(drawn, recursive_seq_lens, place)
