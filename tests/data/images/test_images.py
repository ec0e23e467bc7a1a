"""Batches of images: the same pixels whoever reads them, resumed exactly, broken files skipped."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fleetx import DistributedLoader, roles
from fleetx.data.images import Images, LabelledFiles, View, image_loader, train_loader, val_loader
from fleetx.data.images.decoding import BrokenImageError
from fleetx.data.images.files import labelled_files
from fleetx.data.images.loaders import decoders
from fleetx.data.making.layouts import Recipe, make
from fleetx.testing import world

VIEW = View(image_shape=(3, 16, 20), resize_short_size=24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("images") / "made"
    make(path, Recipe(layout="imagenet", classes=3, train_images=7, val_images=3, size=24))
    return str(path)


def key(image: Tensor) -> bytes:
    return image.numpy().tobytes()


def everything(loader: DistributedLoader) -> list[tuple[list[int], list[bytes]]]:
    return [(labels.tolist(), [key(image) for image in images]) for images, labels in loader]


def test_batches_are_what_the_view_says(folder: str) -> None:
    loader = train_loader(folder, 4, VIEW, num_workers=0)
    batches = list(loader())
    assert [len(labels) for _, labels in batches] == [4, 4, 4, 4, 4, 1]
    assert sorted(label for _, labels in batches for label in labels.tolist()) == sorted(
        [0, 1, 2] * 7
    )
    images = torch.cat([images for images, _ in batches])
    assert images.shape == (21, 3, 16, 20)
    assert images.dtype == torch.float32
    assert -3 < images.min() < images.max() < 3
    dataset = Images(labelled_files(folder, "val"), VIEW, train=False)
    raw, _ = dataset[0]
    (shown, _), *_ = val_loader(folder, 1, VIEW, num_workers=0)
    mean, std = torch.tensor(VIEW.image_mean), torch.tensor(VIEW.image_std)
    expected = (raw.float() / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(shown[0], expected)


def test_a_pass_decides_the_order_and_the_crops(folder: str) -> None:
    def passes(processes: int) -> list[list[tuple[list[int], list[bytes]]]]:
        loader = train_loader(folder, 4, VIEW, num_workers=processes, seed=3)
        return [everything(loader), everything(loader)]

    first = passes(0)
    assert first == passes(2), "nor does it matter which process decodes"
    assert first[0] != first[1]
    assert sorted(label for labels, _ in first[0] for label in labels) == sorted([0, 1, 2] * 7)
    other = everything(train_loader(folder, 4, VIEW, num_workers=0, seed=4))
    assert other != first[0]


@pytest.mark.parametrize("processes", [0, 1])
def test_an_epoch_is_resumed_in_its_middle(folder: str, processes: int) -> None:
    whole = train_loader(folder, 4, VIEW, num_workers=processes)
    everything(whole)  # an epoch before it
    expected = everything(whole)
    stopped = train_loader(folder, 4, VIEW, num_workers=processes)
    everything(stopped)
    batches = iter(stopped)
    next(batches), next(batches)
    state = stopped.state_dict()
    resumed = train_loader(folder, 4, VIEW, num_workers=processes)
    resumed.load_state_dict(state)
    assert everything(resumed) == expected[2:]
    assert everything(resumed) == everything(whole), "and so is the epoch after it"


def shared(folder: str) -> tuple[list[list[int]], list[list[int]], list[bytes]]:
    roles.start(is_collective=True)
    train = train_loader(folder, 2, VIEW, num_workers=0)
    seen = [(labels.tolist(), [key(image) for image in images]) for images, labels in train]
    val = [labels.tolist() for _, labels in val_loader(folder, 2, VIEW, num_workers=0)]
    return [labels for labels, _ in seen], val, [pixels for _, found in seen for pixels in found]


def test_workers_share_what_one_process_sees(folder: str) -> None:
    alone = everything(train_loader(folder, 4, VIEW, num_workers=0))
    first, second = world(2).run(shared, folder)
    together = [sorted([*ours, *theirs]) for ours, theirs in zip(first[0], second[0], strict=True)]
    assert together[:5] == [sorted(labels) for labels, _ in alone[:5]]
    pixels = {*first[2], *second[2]}
    assert pixels == {image for _, images in alone for image in images}
    # Nine images to validate on two workers: a blank one makes the shares equal.
    every = [label for labels in [*first[1], *second[1]] for label in labels]
    assert sorted(every) == [-1, 0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.fixture
def damaged(tmp_path: Path) -> LabelledFiles:
    make(tmp_path / "made", Recipe(layout="imagenet", classes=2, train_images=4, size=24))
    files = labelled_files(tmp_path / "made", "train")
    files.path(2).write_bytes(files.path(2).read_bytes()[:400])
    files.path(3).unlink()
    return files


@pytest.mark.parametrize("processes", [0, 2])
def test_a_broken_image_is_reported_once_and_skipped(
    damaged: LabelledFiles, processes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = logging.StreamHandler()  # its stream is inherited by the processes of a loader
    logging.getLogger("fleetx").addHandler(handler)
    try:
        # Both broken ones are in one batch, so that one process meets them.
        loader = image_loader(Images(damaged, VIEW, train=False), 4, num_workers=processes)
        epochs = [[label for _, labels in loader for label in labels.tolist()] for _ in range(3)]
    finally:
        logging.getLogger("fleetx").removeHandler(handler)
    expected = damaged.labels.tolist()
    expected[2] = expected[3] = expected[4]
    assert epochs == [expected] * 3
    said = capfd.readouterr().err
    for index in (2, 3):
        assert said.count(f"{damaged.path(index).name} is broken") == 1


def test_a_broken_image_stops_where_that_is_asked(damaged: LabelledFiles) -> None:
    images = Images(damaged, VIEW, train=True, on_broken="raise")
    with pytest.raises(BrokenImageError, match=r"is broken \(it ends too early\); replace it"):
        images.__getitems__([1, 2])
    with pytest.raises(ValueError, match="use 'skip' or 'raise'"):
        Images(damaged, VIEW, train=True, on_broken="ignore")


def test_nothing_but_broken_images_is_an_error(tmp_path: Path) -> None:
    files = LabelledFiles.of(tmp_path, ["a.jpg", "b.jpg"], [0, 1])
    with pytest.raises(BrokenImageError, match="none of the 2 images"):
        Images(files, VIEW, train=True)[0]


def test_crops_are_mirrored_half_of_the_time(folder: str) -> None:
    files = labelled_files(folder, "train")
    view = View(image_shape=(3, 24, 24), resize_short_size=24, lower_scale=1.0)
    view = View(**{**vars(view), "lower_ratio": 1.0, "upper_ratio": 1.0})
    images = Images(files, view, train=True)
    seen = set()
    for epoch in range(20):
        images.set_epoch(epoch)
        left = images[0][0].float()[:, :, :12].mean()
        right = images[0][0].float()[:, :, 12:].mean()
        seen.add(bool(left > right))
    assert seen == {True, False}


def cores() -> int:
    roles.start(is_collective=True)
    return decoders()


def test_decoders_scale_with_the_cores() -> None:
    assert decoders() >= 1
    assert world(2).run(cores) == [max(1, decoders() // 2)] * 2


def test_labels_are_numbers(folder: str) -> None:
    files = labelled_files(folder, "train")
    assert files.labels.dtype == np.int64
    assert files.classes == 3
