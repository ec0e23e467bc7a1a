"""Batches of image files as they are, with what shall be seen of them: a card decodes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from fleetx.data.images.dataset import NO_LABEL, Images, room
from fleetx.data.images.decoding import Part, part_of, part_of_jpeg
from fleetx.data.images.jpeg import is_common, jpeg_header
from fleetx.data.images.labelled import LabelledFiles
from fleetx.data.images.placement import Pixels, lay_pixels

_LOOKED_AT = 32
"""Files by which the share of those that cards decode is judged."""


class Entry(NamedTuple):
    """What is told of one image of a batch."""

    number: int
    """Of the image in the data set."""
    width: int
    height: int
    """Of the whole image, in the file."""
    part: Part
    mirrored: bool = False
    is_encoded: bool = True
    """Whether its bytes are a JPEG file; otherwise they are pixels that the host has decoded and
    brought to size, height x width x (red, green, blue)."""


class Image(NamedTuple):
    """One image of a batch."""

    entry: Entry
    data: Tensor


@dataclass(frozen=True)
class EncodedBatch:
    """Images on their way from the processes that read to the one that decodes."""

    data: Tensor
    """The bytes of all images, one behind the other."""
    sizes: Tensor
    """How many each has."""
    entries: Tensor
    """The numbers of an ``Entry`` for each."""
    labels: Tensor

    def images(self) -> list[Image]:
        """One by one."""
        pieces = self.data.split(self.sizes.tolist())
        rows = self.entries.tolist()
        return [Image(_entry(row), piece) for row, piece in zip(rows, pieces, strict=True)]


class EncodedImages(Dataset[Any]):
    """The same images; batches have those that a card decodes as they are in their files.

    What no card decodes, or only slowly, is decoded here: formats other than JPEG, progressive
    files, CMYK.
    """

    def __init__(self, images: Images) -> None:
        self.images = images
        self._size = images.view.size

    def __len__(self) -> int:
        return len(self.images)

    def is_filler(self, index: int) -> bool:
        """Whether an entry is blank."""
        return self.images.is_filler(index)

    def set_epoch(self, epoch: int) -> None:
        """Draw other crops than in the last epoch."""
        self.images.set_epoch(epoch)

    @override
    def __getitem__(self, index: int) -> EncodedBatch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> EncodedBatch:
        """The files of a batch in one piece of memory."""
        found = [self._read(index) for index in indices]
        sizes = [len(data) for _, data, _ in found]
        batch = room((sum(sizes),))
        for place, (_, data, _) in zip(batch.split(sizes), found, strict=True):
            place.numpy()[:] = data
        entries = [[*entry[:3], *entry.part, *entry[4:]] for entry, *_ in found]
        labels = torch.tensor([label for *_, label in found])
        return EncodedBatch(batch, torch.tensor(sizes), torch.tensor(entries), labels)

    def on_host(self, index: int) -> tuple[Image, int]:
        """An image that a card did not decode, and its label; a broken one is skipped."""
        (entry, pixels), label = self.images.first_whole(index, self._decoded)
        return Image(entry, torch.from_numpy(pixels)), label

    def _read(self, index: int) -> tuple[Entry, Pixels, int]:
        if self.is_filler(index):
            return self._ready(index), self._blank().reshape(-1), NO_LABEL
        (entry, data), label = self.images.first_whole(index, self._encoded)
        return entry, data, label

    def _encoded(self, index: int) -> tuple[Entry, Pixels]:
        data = self.images.files.read(index)
        header = jpeg_header(data)
        if header is None or not is_common(data, header):
            return self._decoded(index, data)
        choose, mirrored = self.images.drawn(index)
        part = part_of_jpeg(data, header, self._size, choose)
        entry = Entry(index, header.width, header.height, part, mirrored)
        return entry, np.frombuffer(data, np.uint8)

    def _decoded(self, index: int, data: bytes | None = None) -> tuple[Entry, Pixels]:
        choose, mirrored = self.images.drawn(index)
        out = self._blank()
        part = part_of(data or self.images.files.read(index), self._size, choose)
        lay_pixels(part, out, mirrored=mirrored)
        return self._ready(index), out.reshape(-1)

    def _blank(self) -> Pixels:
        return np.zeros((self._size[1], self._size[0], 3), np.uint8)

    def _ready(self, index: int) -> Entry:
        return Entry(index, *self._size, Part(0, 0, *self._size), is_encoded=False)


def common_share(files: LabelledFiles) -> float:
    """Which share of the images cards decode, as far as a few files tell."""
    chosen = np.linspace(0, len(files) - 1, min(_LOOKED_AT, len(files))).astype(int)
    return float(np.mean([_is_common(files, int(index)) for index in chosen]))


def _is_common(files: LabelledFiles, index: int) -> bool:
    try:
        data = files.read(index)
    except OSError:
        return False
    header = jpeg_header(data)
    return header is not None and is_common(data, header)


def _entry(row: list[int]) -> Entry:
    number, width, height, *part, mirrored, is_encoded = row
    return Entry(number, width, height, Part(*part), bool(mirrored), bool(is_encoded))
