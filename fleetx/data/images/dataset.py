"""A data set of image files that decodes whole batches."""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info
from typing_extensions import override

from fleetx.data.images.decoding import BrokenImageError, Choose, part_of
from fleetx.data.images.labelled import LabelledFiles
from fleetx.data.images.placement import Pixels, lay_pixels, lay_planes
from fleetx.data.images.views import View
from fleetx.data.requirements import require
from fleetx.torch_internals import shared_storage

T = TypeVar("T")
logger = logging.getLogger(__name__)

NO_LABEL = -1
"""Of entries that are no image: they make the shares of all workers equally long."""
ON_BROKEN = ("skip", "raise")


class Images(Dataset[Any]):
    """Images as bytes, red before green before blue, and their labels.

    What is drawn for an image depends on the seed, the epoch and the image, and on nothing else:
    not on the worker, nor on what was read before. An epoch that is resumed sees what it would
    have seen.

    Args:
        files: which images.
        view: what of them is seen.
        train: random crops, half of them mirrored; otherwise the centre.
        seed: of the random crops.
        on_broken: "skip" reports a broken image once and takes the next one in its place; "raise"
            stops.
        multiple_of: blank entries with the label -1 are added up to a multiple of this.
        channels_last: how batches lie in memory; cards want it so, processors do not.
    """

    def __init__(
        self,
        files: LabelledFiles,
        view: View,
        *,
        train: bool,
        seed: int = 0,
        on_broken: str = "skip",
        multiple_of: int = 1,
        channels_last: bool = False,
    ) -> None:
        if on_broken not in ON_BROKEN:
            raise ValueError(f"on_broken={on_broken!r} is not known; use 'skip' or 'raise'.")
        require("cv2", "decoding images")
        self.files, self.view, self.train = files, view, train
        self.seed = seed
        self._skips, self._channels_last = on_broken == "skip", channels_last
        self._length = -(-len(files) // multiple_of) * multiple_of
        # Both are seen by all processes of a loader, and by those of the next epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._reported = torch.zeros(len(files), dtype=torch.bool).share_memory_()

    def __len__(self) -> int:
        return self._length

    def is_filler(self, index: int) -> bool:
        """Whether an entry is blank."""
        return index >= len(self.files)

    def set_epoch(self, epoch: int) -> None:
        """Draw other crops than in the last epoch."""
        self._epoch.fill_(epoch)

    @property
    def epoch(self) -> int:
        """By whose number crops are drawn."""
        return int(self._epoch)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        images, labels = self.__getitems__([index])
        return images[0], int(labels[0])

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch: bytes of shape batch x 3 x height x width."""
        colours, height, width = self.view.image_shape
        shape = (height, width, colours) if self._channels_last else (colours, height, width)
        batch = room((len(indices), *shape))
        pixels = batch.numpy()
        labels = [self._read(index, pixels[at]) for at, index in enumerate(indices)]
        images = batch.permute(0, 3, 1, 2) if self._channels_last else batch
        return images, torch.tensor(labels)

    def _read(self, index: int, out: Pixels) -> int:
        if self.is_filler(index):
            out.fill(0)
            return NO_LABEL
        return self.first_whole(index, lambda found: self._decode(found, out))[1]

    def first_whole(self, index: int, read: Callable[[int], T]) -> tuple[T, int]:
        """What is read of an image, or of the next one that is not broken, and its label."""
        for other in range(index, index + len(self.files)):
            found = other % len(self.files)
            try:
                return read(found), int(self.files.labels[found])
            except (OSError, BrokenImageError) as error:
                self._complain(found, error)
        raise BrokenImageError(
            f"none of the {len(self.files)} images under {str(self.files.folder)!r} can be read; "
            "look at the paths in the list and at the files."
        )

    def _decode(self, index: int, out: Pixels) -> None:
        choose, mirrored = self.drawn(index)
        lay = lay_pixels if self._channels_last else lay_planes
        lay(part_of(self.files.read(index), self.view.size, choose), out, mirrored=mirrored)

    def drawn(self, index: int) -> tuple[Choose, bool]:
        """Which part of an image is seen, and whether it is mirrored."""
        if not self.train:
            return self.view.centre, False
        numbers = Random(self.seed << 96 | self.epoch << 48 | index)
        mirrored = numbers.random() < 0.5
        return partial(self.view.random, numbers=numbers), mirrored

    def _complain(self, index: int, error: Exception) -> None:
        path = self.files.path(index)
        if not self._skips:
            raise BrokenImageError(
                f"{str(path)!r} is broken ({error}); replace it, take it off the list, or set "
                "on_broken='skip'."
            ) from error
        # Two processes may look at once and both report it, which does no harm.
        if not self._reported[index]:
            self._reported[index] = True
            logger.warning("%s is broken (%s); the next image takes its place", path, error)


def room(shape: tuple[int, ...]) -> Tensor:
    """Memory for a batch; a process of a loader writes where its reader reads."""
    if get_worker_info() is None or not math.prod(shape):
        return torch.empty(shape, dtype=torch.uint8)
    # What lies in shared memory goes to the reader as a handle; anything else is copied there.
    storage = shared_storage(math.prod(shape))
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)
