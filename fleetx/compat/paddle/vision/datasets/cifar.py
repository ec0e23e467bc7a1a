"""``paddle.vision.datasets.cifar``."""

from collections.abc import Callable
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.compat.paddle.dataset import cifar
from fleetx.compat.paddle.io.dataset import Dataset
from fleetx.compat.paddle.vision.image import as_backend, get_image_backend


class Cifar10(Dataset):
    """Pictures of 32 x 32 pixels: from a local archive, a mirror, or drawn."""

    classes = 10

    def __init__(
        self,
        data_file: str | None = None,
        mode: str = "train",
        transform: Callable[[Any], Any] | None = None,
        download: bool = True,
        backend: str | None = None,
    ) -> None:
        if mode.lower() not in {"train", "test"}:
            raise ValueError(f"{type(self).__name__}(mode={mode!r}): 'train' or 'test'.")
        self.mode, self.transform = mode.lower(), transform
        self.backend = backend or get_image_backend()
        self.data = [
            (np.rint(image * 255).astype("uint8").reshape(3, 32, 32), label)
            for image, label in self._reader(data_file)()
        ]

    def _reader(self, data_file: str | None) -> Any:
        training = self.mode == "train"
        if data_file is not None:
            parts = {10: ("data_batch", "test_batch"), 100: ("train", "test")}[self.classes]
            return cifar.reader_creator(data_file, parts[0] if training else parts[1])
        if self.classes == 10:
            return cifar.train10() if training else cifar.test10()
        return cifar.train100() if training else cifar.test100()

    @override
    def __getitem__(self, idx: int) -> Any:
        pixels, label = self.data[idx]
        image = pixels.transpose(1, 2, 0)
        given = as_backend(image, self.backend)
        if self.transform is not None:
            given = self.transform(given)
        return given, np.array(label, "int64")

    @override
    def __len__(self) -> int:
        return len(self.data)


class Cifar100(Cifar10):
    """The same with 100 classes."""

    classes = 100
