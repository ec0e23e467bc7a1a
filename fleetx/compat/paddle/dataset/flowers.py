"""``paddle.dataset.flowers``: 3 x 224 x 224 pixels in a row, less the mean of each colour."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import pictures
from fleetx.compat.paddle.dataset.image import load_image_bytes, simple_transform
from fleetx.compat.paddle.reader.decorator import map_readers, xmap_readers
from fleetx.data.images import flowers

CLASSES = 102
DRAWN = {"train": 256, "test": 64, "valid": 64}
SPLITS = {"train": "test", "test": "train", "valid": "val"}
"""Paddle trains on the largest split, which the archive calls that of tests."""
MEAN = np.array([103.94, 116.78, 123.68], "float32")

Reader = Callable[[], Iterable[Any]]
Mapper = Callable[[Any], Any]


def default_mapper(is_train: bool, sample: tuple[bytes, int]) -> tuple[np.ndarray, int]:
    """A part of a picture as a row of numbers."""
    data, label = sample
    image = simple_transform(load_image_bytes(data), 256, 224, is_train, mean=MEAN)
    return image.flatten().astype("float32"), label


train_mapper: Mapper = functools.partial(default_mapper, True)
test_mapper: Mapper = functools.partial(default_mapper, False)


def _files() -> Path | None:
    places = [common.found("flowers", name) for name in flowers.ARCHIVES]
    return places[0].parent if places[0] is not None and all(places) else None


def _split(name: str, mapper: Mapper, buffered_size: int, use_xmap: bool, cycle: bool) -> Reader:
    folder = _files()
    once = _read(folder, name, mapper, buffered_size, use_xmap) if folder else _draw(name, mapper)
    if not cycle:
        return once
    return lambda: itertools.chain.from_iterable(once() for _ in itertools.count())


def _read(folder: Path, name: str, mapper: Mapper, ahead: int, use_xmap: bool) -> Reader:
    listed = flowers.read(folder, SPLITS[name])

    def samples() -> Iterator[tuple[bytes, int]]:
        for at in range(len(listed)):
            yield listed.read(at), int(listed.labels[at])

    return xmap_readers(mapper, samples, 4, ahead) if use_xmap else map_readers(mapper, samples)


def _draw(name: str, mapper: Mapper) -> Reader:
    common.drawn("flowers", f": {DRAWN[name]} pictures of {CLASSES} kinds")
    if mapper not in {train_mapper, test_mapper}:
        return map_readers(mapper, lambda: _jpegs(name))

    def samples() -> Iterator[tuple[np.ndarray, int]]:
        for image, label in pictures(CLASSES, (3, 224, 224), DRAWN[name], name):
            yield (image * 255.0 - MEAN[:, None, None]).reshape(-1), label

    return samples


def _jpegs(name: str) -> Iterator[tuple[bytes, int]]:
    """Pictures as files, for a script that decodes them itself."""
    from fleetx.data.making.pictures import jpeg

    for image, label in pictures(CLASSES, (3, 256, 256), DRAWN[name], name):
        yield jpeg((image * 255).astype("uint8").transpose(1, 2, 0)), label


def train(
    mapper: Mapper = train_mapper,
    buffered_size: int = 1024,
    use_xmap: bool = True,
    cycle: bool = False,
) -> Reader:
    """A reader of the training set.

    Args:
        mapper: makes a sample of the bytes of a file and its class.
        buffered_size: samples to compute ahead.
        use_xmap: let threads do so.
        cycle: begin again at the end.
    """
    return _split("train", mapper, buffered_size, use_xmap, cycle)


def test(
    mapper: Mapper = test_mapper,  # noqa: PT028
    buffered_size: int = 1024,  # noqa: PT028
    use_xmap: bool = True,  # noqa: PT028
    cycle: bool = False,  # noqa: PT028
) -> Reader:
    """A reader of the test set."""
    return _split("test", mapper, buffered_size, use_xmap, cycle)


def valid(mapper: Mapper = test_mapper, buffered_size: int = 1024, use_xmap: bool = True) -> Reader:
    """A reader of the validation set."""
    return _split("valid", mapper, buffered_size, use_xmap, False)


def fetch() -> None:
    """Bring the files here, if a mirror has them."""
    _files()
