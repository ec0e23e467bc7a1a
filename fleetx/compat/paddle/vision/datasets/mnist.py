"""``paddle.vision.datasets.mnist``."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Callable
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.compat.paddle.dataset import mnist
from fleetx.compat.paddle.io.dataset import Dataset
from fleetx.compat.paddle.vision.image import as_backend, get_image_backend


class MNIST(Dataset):
    """Digits of 28 x 28 grey pixels: from local files, a mirror, or drawn."""

    NAME = "mnist"

    def __init__(
        self,
        image_path: str | None = None,
        label_path: str | None = None,
        mode: str = "train",
        transform: Callable[[Any], Any] | None = None,
        download: bool = True,
        backend: str | None = None,
    ) -> None:
        if mode.lower() not in {"train", "test"}:
            raise ValueError(f"{type(self).__name__}(mode={mode!r}): 'train' or 'test'.")
        self.mode, self.transform = mode.lower(), transform
        self.backend = backend or get_image_backend()
        self.dtype = "float32"
        self.images: list[Any] = []
        self.labels: list[Any] = []
        for image, label in self._reader(image_path, label_path)():
            self.images.append(np.rint((image + 1.0) * 127.5).astype("uint8").reshape(28, 28))
            self.labels.append(np.array([label], "int64"))

    def _reader(self, image_path: str | None, label_path: str | None) -> Any:
        if image_path is not None and label_path is not None:
            return mnist.reader_creator(image_path, label_path)
        return mnist.train() if self.mode == "train" else mnist.test()

    @override
    def __getitem__(self, idx: int) -> Any:
        image, label = self.images[idx], self.labels[idx]
        given = as_backend(image, self.backend)
        if self.transform is not None:
            given = self.transform(given)
        return given, label

    @override
    def __len__(self) -> int:
        return len(self.labels)


class FashionMNIST(MNIST):
    """Clothes of 28 x 28 grey pixels, in the same files."""

    NAME = "fashion-mnist"
