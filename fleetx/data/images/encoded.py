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
from fleetx.data.images.pace import Pace, Turn
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


@dataclass(frozen=True)
class EncodedBatch:
    """Images on their way from the processes that read to the one that decodes."""

    files: Tensor
    """The bytes of files, one behind the other."""
    sizes: Tensor
    """How many each file has."""
    pixels: Tensor
    """The images that were decoded already."""
    numbers: Tensor
    """An ``Entry`` for each image, of either kind."""
    labels: Tensor

    def entries(self) -> list[Entry]:
        """What is told of each image."""
        return [_entry(row) for row in self.numbers.tolist()]

    def encoded(self) -> list[Tensor]:
        """The files, one by one."""
        return list(self.files.split(self.sizes.tolist()))


class EncodedImages(Dataset[Any]):
    """The same images; batches have those that a card decodes as they are in their files.

    What no card decodes, or only slowly, is decoded here: formats other than JPEG, progressive
    files, CMYK.

    Args:
        images: the data set.
        shared: whether processes that read decode as many images as they have time for.
    """

    shares_epoch = True
    """Copies in other processes hear of a new epoch."""

    def __init__(self, images: Images, *, shared: bool = False) -> None:
        self.images = images
        self.pace = Pace()
        self._turn = Turn(self.pace) if shared else None
        self._size = images.view.size

    def __len__(self) -> int:
        return len(self.images)

    def is_filler(self, index: int) -> bool:
        """Whether an entry is blank."""
        return self.images.is_filler(index)

    def set_epoch(self, epoch: int) -> None:
        """Draw other crops than in the last epoch."""
        self.images.set_epoch(epoch)
        self.pace.begin()

    @override
    def __getitem__(self, index: int) -> EncodedBatch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> EncodedBatch:
        """The files of a batch in one piece of memory."""
        if self._turn is not None:
            self._turn.next_batch()
        found = [self._read(index) for index in indices]
        files = [data for entry, data, _ in found if entry.is_encoded]
        ready = [data for entry, data, _ in found if not entry.is_encoded]
        sizes = [len(data) for data in files]
        numbers = [[*entry[:3], *entry.part, *entry[4:]] for entry, *_ in found]
        return EncodedBatch(
            _laid(room((sum(sizes),)), sizes, files),
            torch.tensor(sizes),
            _laid(room((len(ready), *self._shape)), [1] * len(ready), ready),
            torch.tensor(numbers),
            torch.tensor([label for *_, label in found]),
        )

    def on_host(self, index: int) -> tuple[Entry, Tensor, int]:
        """An image that a card did not decode, and its label; a broken one is skipped."""
        (entry, pixels), label = self.images.first_whole(index, self._decoded)
        return entry, torch.from_numpy(pixels), label

    def _read(self, index: int) -> tuple[Entry, Pixels, int]:
        if self.is_filler(index):
            return self._ready(index), np.zeros(self._shape, np.uint8), NO_LABEL
        (entry, data), label = self.images.first_whole(index, self._encoded)
        return entry, data, label

    def _encoded(self, index: int) -> tuple[Entry, Pixels]:
        data = self.images.files.read(index)
        header = jpeg_header(data)
        has_time = self._turn is not None and self._turn.has_time()
        if header is None or has_time or not is_common(data, header):
            return self._decoded(index, data)
        choose, mirrored = self.images.drawn(index)
        part = part_of_jpeg(data, header, self._size, choose)
        entry = Entry(index, header.width, header.height, part, mirrored)
        return entry, np.frombuffer(data, np.uint8)

    def _decoded(self, index: int, data: bytes | None = None) -> tuple[Entry, Pixels]:
        choose, mirrored = self.images.drawn(index)
        out: Pixels = np.empty(self._shape, np.uint8)
        part = part_of(data or self.images.files.read(index), self._size, choose)
        lay_pixels(part, out, mirrored=mirrored)
        return self._ready(index), out

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self._size[1], self._size[0], 3

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


def _laid(place: Tensor, sizes: list[int], pieces: list[Pixels]) -> Tensor:
    """The same memory, with the pieces in it."""
    for part, piece in zip(place.split(sizes), pieces, strict=True):
        part.numpy()[:] = piece
    return place


def _entry(row: list[int]) -> Entry:
    number, width, height, *part, mirrored, is_encoded = row
    return Entry(number, width, height, Part(*part), bool(mirrored), bool(is_encoded))
