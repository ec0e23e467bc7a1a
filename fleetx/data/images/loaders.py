"""Batches of images for this worker, decoded by as many processes as there are cores for it."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

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
    # What a container or a scheduler allows, where it can be asked.
    ask = getattr(os, "sched_getaffinity", None)
    cores = len(ask(0)) if ask else os.cpu_count() or 1
    return max(1, cores // neighbours())


class Normalise:
    """Bytes to floats of mean 0 and variance 1, after they travelled as bytes."""

    def __init__(self, view: View) -> None:
        mean, std = torch.tensor(view.image_mean), torch.tensor(view.image_std)
        self._scale = (1 / (255 * std)).view(1, 3, 1, 1)
        self._shift = (-mean / std).view(1, 3, 1, 1)

    def __call__(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The batch with its images as floats."""
        images, labels = batch
        if self._scale.device != images.device:
            self._scale = self._scale.to(images.device)
            self._shift = self._shift.to(images.device)
        # Bytes times floats would be turned into floats first, too, in memory of their own.
        return images.to(torch.float32).mul_(self._scale).add_(self._shift), labels


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
