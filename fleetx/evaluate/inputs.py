"""The inputs of an evaluation: files that a list names, as tensors, always in the same order."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of red, green and blue between 0 and 1, as the networks of document 001 want them."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Where the inputs come from and how they become tensors."""

    data_dir: str
    """The folder with the list; paths in the list start here."""
    list_file: str = "val.txt"
    """Lines of "path label"; the label may be missing."""
    image_shape: tuple[int, int, int] = (3, 224, 224)
    """Channels, height and width of what the network sees."""
    resize_short_size: int = 256
    """The short side of an image before its centre is cut out."""

    def to_json(self) -> str:
        """For the metadata of a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Reading":
        """What ``to_json`` wrote."""
        values = json.loads(text)
        return cls(**{**values, "image_shape": tuple(values["image_shape"])})


class Inputs(Sequence[tuple[str, Tensor]]):
    """Pairs of a name and a tensor without a batch dimension."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self._folder = Path(reading.data_dir)
        self.names, self.labels = _listed(self._folder / reading.list_file)

    @override
    def __len__(self) -> int:
        return len(self.names)

    @override
    def __getitem__(self, index: int) -> tuple[str, Tensor]:  # type: ignore[override]
        """One input by its place in the list."""
        name = self.names[index]
        path = self._folder / name
        if not path.is_file():
            raise FileNotFoundError(
                f"{self.reading.list_file} names {name!r}, and there is no such file in "
                f"{str(self._folder)!r}; correct the list, or set --data_dir."
            )
        if path.suffix == ".npy":
            return name, torch.from_numpy(np.load(path, allow_pickle=False))
        return name, image(path, self.reading)

    def batch(self, start: int, end: int) -> Tensor:
        """Consecutive inputs as one tensor."""
        return torch.stack([self[index][1] for index in range(start, end)])


def image(path: Path, reading: Reading) -> Tensor:
    """The centre of an image, normalised, channels first."""
    from PIL import Image, UnidentifiedImageError

    _, height, width = reading.image_shape
    try:
        with Image.open(path) as opened:
            whole = opened.convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(
            f"{str(path)!r} is no image that can be read ({error}); remove it from the list."
        ) from error
    scale = reading.resize_short_size / min(whole.size)
    size = (max(width, round(whole.width * scale)), max(height, round(whole.height * scale)))
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    part = whole.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(part.crop((left, top, left + width, top + height)), dtype=np.float32)
    normal = (pixels / 255 - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return torch.from_numpy(normal.transpose(2, 0, 1).copy())


def checksum(value: Tensor) -> int:
    """By which an input is recognised when it is read again."""
    return zlib.crc32(value.contiguous().numpy().tobytes())


def _listed(path: Path) -> tuple[list[str], list[int]]:
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no list {str(path)!r}; set --data_dir to the folder that has it, and "
            "--list to its name. Its lines are 'path label'."
        )
    names, labels = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.lstrip("-").isdigit():
            name, label = line.strip(), "-1"
        names.append(name)
        labels.append(int(label))
    if not names:
        raise ValueError(f"the list {str(path)!r} is empty; write a line 'path label' per input.")
    return names, labels
