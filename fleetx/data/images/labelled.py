"""Image files and what is on them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LabelledFiles:
    """Image files and their labels.

    The paths are bytes of one array: the processes of a loader share its memory, where every look
    at a list of strings would copy some of it.
    """

    folder: Path
    paths: NDArray[np.bytes_]
    """Relative to the folder, or absolute."""
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, folder: Path, paths: Sequence[str], labels: Any) -> "LabelledFiles":
        """From ordinary lists."""
        names = np.array([path.encode() for path in paths], dtype=np.bytes_)
        return cls(folder, names, np.asarray(labels, np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        """Where one image is."""
        return self.folder / bytes(self.paths[index]).decode()

    def read(self, index: int) -> bytes:
        """The bytes of one image; several times as fast as through its path."""
        place = os.path.join(os.fsencode(self.folder), bytes(self.paths[index]))
        with open(place, "rb", 0) as file:
            return file.read()

    @property
    def classes(self) -> int:
        """One more than the largest label."""
        return int(self.labels.max()) + 1
