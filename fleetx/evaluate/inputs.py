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

from fleetx.data.images import flowers
from fleetx.data.images.decoding import BrokenImageError, fill
from fleetx.data.images.views import View
from fleetx.data.requirements import require


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Where the inputs come from and how they become tensors."""

    data_dir: str
    """The folder with the list, or with the archives of Flowers-102."""
    list_file: str = "val.txt"
    """Lines of "path label"; the label may be missing. Paths start in the folder of the split, as
    ``val`` for ``val.txt``, or in ``data_dir``."""
    image_shape: tuple[int, int, int] = (3, 224, 224)
    """Channels, height and width of what the network sees."""
    resize_short_size: int = 256
    """The short side of an image before its centre is cut out."""

    @property
    def view(self) -> View:
        """What a network sees of an image; the same as when it was validated."""
        return View(image_shape=self.image_shape, resize_short_size=self.resize_short_size)

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
        self._folder, self.names, self.labels = _listed(Path(reading.data_dir), reading.list_file)
        if not all(name.endswith(".npy") for name in self.names):
            require("cv2", "reading images")

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
        return name, image(path, self.reading.view)

    def batch(self, start: int, end: int) -> Tensor:
        """Consecutive inputs as one tensor."""
        return torch.stack([self[index][1] for index in range(start, end)])


def image(path: Path, view: View) -> Tensor:
    """The centre of an image, normalised, channels first."""
    _, height, width = view.image_shape
    pixels = np.empty((height, width, 3), np.uint8)
    try:
        fill(pixels, path.read_bytes(), view.centre)
    except BrokenImageError as error:
        raise ValueError(
            f"{str(path)!r} is no image that can be read ({error}); remove it from the list."
        ) from error
    mean, std = (np.array(each, np.float32) for each in (view.image_mean, view.image_std))
    normal = (pixels.astype(np.float32) / 255 - mean) / std
    return torch.from_numpy(normal.transpose(2, 0, 1).copy())


def checksum(value: Tensor) -> int:
    """By which an input is recognised when it is read again."""
    return zlib.crc32(value.contiguous().numpy().tobytes())


def _listed(root: Path, list_file: str) -> tuple[Path, list[str], list[int]]:
    """Where paths start, the paths, and the labels, -1 for those without."""
    path, split = root / list_file, Path(list_file).stem
    if not path.is_file():
        if flowers.is_there(root):
            files = flowers.read(root, split)
            return files.folder, [name.decode() for name in files.paths], files.labels.tolist()
        raise FileNotFoundError(
            f"there is no list {str(path)!r}; set --data_dir to the folder that has it, and "
            "--list to its name. Its lines are 'path label'."
        )
    entries = [
        _entry(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    if not entries:
        raise ValueError(f"the list {str(path)!r} is empty; write a line 'path label' per input.")
    names, labels = [name for name, _ in entries], [label for _, label in entries]
    inside = (root / split / names[0]).exists()
    return root / split if inside else root, names, labels


def _entry(line: str) -> tuple[str, int]:
    name, _, label = line.strip().rpartition(" ")
    known = name and label.removeprefix("-").isdecimal()
    return (name, int(label)) if known else (line.strip(), -1)
