"""``fleetx.dataset.image_dataset``: images of a folder or a list, over fleetx's own loaders."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fleetx.compat.fleetx_1.dataset.feeding import Loader
from fleetx.compat.notes import note
from fleetx.data.images.loaders import train_loader, val_loader


def image_loader_of(  # noqa: PLR0917 (the order of FleetX)
    folder: str | Path,
    inputs: Sequence[Any],
    batch_size: int = 32,
    phase: str = "train",
    shuffle: bool = True,
    use_dali: bool = False,
    data_layout: str = "NCHW",
) -> Loader:
    """This worker's share of the images of a folder, as feeds of a model."""
    if use_dali:
        note("use_dali=True", "fleetx decodes images by itself; they are the same.")
    if phase == "train":
        loader = train_loader(folder, batch_size, shuffle=shuffle, drop_last=True)
    else:
        loader = val_loader(folder, batch_size)

    def batches() -> Iterator[Sequence[Any]]:
        for images, labels in loader:
            last = images.permute(0, 2, 3, 1) if data_layout == "NHWC" else images
            yield last, labels.reshape(-1, 1)

    return Loader(inputs, batches)


def image_dataloader_from_filelist(  # noqa: PLR0917 (the order of FleetX)
    filelist: str | Path,
    inputs: Sequence[Any],
    batch_size: int = 32,
    phase: str = "train",
    shuffle: bool = True,
    use_dali: bool = False,
    data_layout: str = "NCHW",
) -> Loader:
    """The same by a list such as ``ImageNet/train.txt``; its images lie beside it."""
    place = Path(filelist)
    folder = place.parent if place.is_file() or place.suffix == ".txt" else place
    return image_loader_of(folder, inputs, batch_size, phase, shuffle, use_dali, data_layout)
