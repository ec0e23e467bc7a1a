"""Batches of images for this worker, decoded by as many processes as there are cores for it."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from fleetx.data import cores
from fleetx.data.images.card import CardDecoder
from fleetx.data.images.dataset import Images
from fleetx.data.images.decoders import choose_decoder
from fleetx.data.images.encoded import EncodedImages
from fleetx.data.images.files import labelled_files
from fleetx.data.images.normalising import Normalise
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
    decoder: str = "auto",
) -> DistributedLoader:
    """This worker's share of any images, as float tensors on its device.

    Args:
        images: the data set.
        batch_size: of this worker.
        shuffle: in an order that the number of the pass decides.
        drop_last: leave out the last incomplete batch of all workers together.
        num_workers: processes that decode; by default the cores divided by the workers of this
            machine. 0 decodes in this process. Where the card decodes, they read files, and four
            are enough.
        decoder: "cpu", "gpu", or "auto" for both together where there is a GPU that can.
    """
    chosen = choose_decoder(decoder, images.files, decoders())
    processes = chosen.processes if num_workers is None else num_workers
    made = partial(
        DataLoader,
        batch_size=batch_size,
        sampler=SeededByPass(len(images), images.seed) if shuffle else None,
        drop_last=drop_last,
        num_workers=processes,
        collate_fn=_as_is,
    )
    if chosen.card is None:
        pinned = torch.cuda.is_available()
        loader = made(images, pin_memory=pinned, worker_init_fn=_one_thread)
        return distributed_loader(loader, then=Normalise(images.view))
    source = EncodedImages(images, shared=chosen.shared)
    card = CardDecoder(source, chosen.card)
    # A card is so fast that starting the processes for each epoch would take a part of it.
    loader = made(source, worker_init_fn=_one_thread_aside, persistent_workers=processes > 0)
    return distributed_loader(loader, ahead=card.work, then=card.hand_over)


def decoders() -> int:
    """How many processes have a core to decode on."""
    return max(1, cores.usable() // neighbours())


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


def _one_thread_aside(worker: int) -> None:
    """Besides, who trains goes first: it keeps the card busy."""
    _one_thread(worker)
    if hasattr(os, "nice"):
        os.nice(5)
