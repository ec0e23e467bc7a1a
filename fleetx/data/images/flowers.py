"""Flowers-102 from its original archives, unpacked once on every machine."""

import logging
import shutil
import tarfile
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.data.images.files import LabelledFiles
from fleetx.data.images.mat_file import read_mat
from fleetx.data.locks import only_one

logger = logging.getLogger(__name__)

IMAGES, LABELS, SPLITS = ARCHIVES = ("102flowers.tgz", "imagelabels.mat", "setid.mat")
NAMES = {"train": "trnid", "val": "valid", "test": "tstid"}
"""Our splits -> those of the archive."""
UNPACKED = "jpg"


def is_there(folder: Path) -> bool:
    """Whether the folder has the labels, and the images in the archive or unpacked."""
    images = (folder / IMAGES).is_file() or (folder / UNPACKED).is_dir()
    return images and all((folder / name).is_file() for name in (LABELS, SPLITS))


def read(folder: Path, split: str) -> LabelledFiles:
    """The files of a split; labels count from 0, where the archive counts from 1."""
    if split not in NAMES:
        raise ValueError(f"split={split!r} is not known; use one of {', '.join(NAMES)}")
    labels = _array(folder / LABELS, "labels")
    numbers = _array(folder / SPLITS, NAMES[split])
    if numbers.min() < 1 or numbers.max() > len(labels):
        raise ValueError(
            f"{SPLITS} speaks of image {numbers.max()}, and {LABELS} has labels for {len(labels)}; "
            "the two files must be of the same data set."
        )
    unpack(folder)
    paths = [f"{UNPACKED}/image_{number:05d}.jpg" for number in numbers]
    return LabelledFiles.of(folder, paths, labels[numbers - 1] - 1)


def unpack(folder: Path) -> None:
    """Unpack the images beside the archive, unless they are there."""
    with only_one(folder / ".unpacking.lock"):
        if (folder / UNPACKED).is_dir():
            return
        logger.info("unpacking %s", folder / IMAGES)
        beside = folder / f".{uuid.uuid4().hex}"
        try:
            with tarfile.open(folder / IMAGES) as archive:
                archive.extractall(beside, filter="data")
            (beside / UNPACKED).rename(folder / UNPACKED)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ValueError(
                f"{str(folder / IMAGES)!r} cannot be unpacked ({error}); get the archive again, or "
                "make room on the disk."
            ) from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _array(path: Path, name: str) -> np.ndarray[Any, Any]:
    arrays = read_mat(path)
    if name not in arrays:
        raise ValueError(
            f"{str(path)!r} has no array {name!r}, only {', '.join(arrays) or 'none'}; use the "
            "original file of Flowers-102."
        )
    return arrays[name].reshape(-1).astype(np.int64)
