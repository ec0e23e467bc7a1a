"""Flowers-102 from its original archives, unpacked once on every machine."""

import logging
import os
import shutil
import tarfile
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.data.images.labelled import LabelledFiles
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
    names = [f"image_{number:05d}.jpg" for number in numbers]
    if _lacking(folder, names):
        _unpack(folder, names)
    paths = [f"{UNPACKED}/{name}" for name in names]
    return LabelledFiles.of(folder, paths, labels[numbers - 1] - 1)


def _lacking(folder: Path, names: list[str]) -> list[str]:
    """The images that are not unpacked; a folder that many share may allow nothing but reading."""
    try:
        return sorted({*names}.difference(os.listdir(folder / UNPACKED)))
    except (FileNotFoundError, NotADirectoryError):
        return names


def _unpack(folder: Path, names: list[str]) -> None:
    """Unpack the images beside the archive, unless another worker has done it meanwhile."""
    if not (folder / IMAGES).is_file():
        return  # what is missing is reported when it is read
    try:
        with only_one(folder / ".unpacking.lock"):
            if not (folder / UNPACKED).is_dir():
                _extract(folder)
    except OSError as error:
        raise ValueError(
            f"{str(folder)!r} has its images only in {IMAGES}, and nothing can be written there "
            f"({error}); unpack the archive there, or copy the folder to where you may write."
        ) from error
    if lacking := _lacking(folder, names):
        raise ValueError(
            f"{str(folder / UNPACKED)!r} lacks {len(lacking)} images, {lacking[0]} among them; "
            f"remove the folder, and {IMAGES} is unpacked again, or get the archive again."
        )


def _extract(folder: Path) -> None:
    logger.info("unpacking %s", folder / IMAGES)
    beside = folder / f".{uuid.uuid4().hex}"
    try:
        with tarfile.open(folder / IMAGES) as archive:
            archive.extractall(beside, filter="data")
        (beside / UNPACKED).rename(folder / UNPACKED)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
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
