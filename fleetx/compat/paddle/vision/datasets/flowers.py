"""``paddle.vision.datasets.flowers``."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Callable
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.compat.paddle.dataset import flowers
from fleetx.compat.paddle.dataset.image import load_image_bytes
from fleetx.compat.paddle.io.dataset import Dataset
from fleetx.compat.paddle.vision.image import as_backend, get_image_backend


def _as_is(sample: tuple[bytes, int]) -> tuple[bytes, int]:
    return sample


class Flowers(Dataset):
    """Flowers of 102 kinds: from local files, a mirror, or drawn."""

    def __init__(
        self,
        data_file: str | None = None,
        label_file: str | None = None,
        setid_file: str | None = None,
        mode: str = "train",
        transform: Callable[[Any], Any] | None = None,
        download: bool = True,
        backend: str | None = None,
    ) -> None:
        if data_file or label_file or setid_file:
            raise ValueError(
                "Flowers(data_file=…) takes its three files from paddle.dataset's folder; put them "
                "into ~/.cache/paddle/dataset/flowers."
            )
        readers = {"train": flowers.train, "test": flowers.test, "valid": flowers.valid}
        if mode.lower() not in readers:
            raise ValueError(f"Flowers(mode={mode!r}): 'train', 'valid' or 'test'.")
        self.transform, self.backend = transform, backend or get_image_backend()
        self.data = list(readers[mode.lower()](mapper=_as_is, use_xmap=False)())

    @override
    def __getitem__(self, idx: int) -> Any:
        data, label = self.data[idx]
        pixels = load_image_bytes(data)[:, :, ::-1]
        given = as_backend(np.ascontiguousarray(pixels), self.backend)
        if self.transform is not None:
            given = self.transform(given)
        return given, np.array([label], "int64")

    @override
    def __len__(self) -> int:
        return len(self.data)
