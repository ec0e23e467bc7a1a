"""Batches of images for this worker, decoded by as many processes as there are cores for it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fleetx.data import cores
from fleetx.data.images.dataset import Images
from fleetx.data.images.files import labelled_files
from fleetx.data.images.passes import SeededByPass
from fleetx.data.images.views import View
from fleetx.data.loader import DistributedLoader, distributed_loader
from fleetx.data.team import find_team, neighbours


def train_loader(
    folder: str | Path, batch_size: int = 32, view: View | None = None, **options: Any
) -> DistributedLoader:
    """Random parts of the images of ``train``, in another order in every pass.

    Args:
        folder: an ImageNet layout, or the archives of Flowers-102.
        batch_size: of this worker.
        view: size, crops and scale; that of ImageNet if None.
        options: those of ``image_loader``, and ``on_broken``.
    """
    return _loader(folder, "train", batch_size, view or View(), {"shuffle": True, **options})


def val_loader(
    folder: str | Path, batch_size: int = 32, view: View | None = None, **options: Any
) -> DistributedLoader:
    """The centres of the images of ``val``, in the order of the list.

    Where the workers do not divide their number, blank images with the label -1 fill the last
    batch; ``fleetx.metrics.Accuracy`` does not count them.
    """
    return _loader(folder, "val", batch_size, view or View(), options)


def image_loader(
    images: Images,
    batch_size: int = 32,
    *,
    shuffle: bool = False,
    drop_last: bool = False,
    num_workers: int | None = None,
) -> DistributedLoader:
    """This worker's share of any images, as float tensors on its device.

    Args:
        images: the data set.
        batch_size: of this worker.
        shuffle: in an order that the number of the pass decides.
        drop_last: leave out the last incomplete batch of all workers together.
        num_workers: processes that decode; by default the cores divided by the workers of this
            machine. 0 decodes in this process.
    """
    loader = DataLoader(
        images,
        batch_size,
        sampler=SeededByPass(len(images), images.seed) if shuffle else None,
        drop_last=drop_last,
        num_workers=decoders() if num_workers is None else num_workers,
        collate_fn=_as_is,
        worker_init_fn=_one_thread,
        pin_memory=torch.cuda.is_available(),
    )
    return distributed_loader(loader, then=Normalise(images.view))


def decoders() -> int:
    """How many processes have a core to decode on."""
    return max(1, cores.usable() // neighbours())


class Normalise:
    """Bytes to floats of mean 0 and variance 1, after they travelled as bytes."""

    def __init__(self, view: View) -> None:
        mean, std = torch.tensor(view.image_mean), torch.tensor(view.image_std)
        self._scale, self._shift = 1 / (255 * std), -mean / std
        self._scales = self._scale.tolist()

    def __call__(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The batch with its images as floats."""
        images, labels = batch
        if self._shift.device != images.device:
            self._scale = self._scale.to(images.device)
            self._shift = self._shift.to(images.device)
        floats = images.to(torch.float32)
        return (self._planes if floats.is_contiguous() else self._pixels)(floats), labels

    def _pixels(self, floats: Tensor) -> Tensor:
        scale, shift = self._scale.view(3, 1, 1), self._shift.view(3, 1, 1)
        return floats.mul_(scale).add_(shift)

    def _planes(self, floats: Tensor) -> Tensor:
        """Where a colour lies in one piece, one pass over it does both."""
        for plane, shift, scale in zip(floats.unbind(1), self._shift, self._scales, strict=True):
            torch.add(shift, plane, alpha=scale, out=plane)
        return floats


def _loader(
    folder: str | Path, split: str, batch_size: int, view: View, options: dict[str, Any]
) -> DistributedLoader:
    seed, on_broken = options.pop("seed", 0), options.pop("on_broken", "skip")
    train = split == "train"
    images = Images(
        labelled_files(folder, split),
        view,
        train=train,
        seed=seed,
        on_broken=on_broken,
        multiple_of=1 if train else find_team(None).size,
        channels_last=torch.cuda.is_available(),
    )
    return image_loader(images, batch_size, **options)


def _as_is(batch: Any) -> Any:
    """The data set has made a batch already."""
    return batch


def _one_thread(worker: int) -> None:
    """There is one process for each core."""
    import cv2

    cv2.setNumThreads(0)
