"""Both layouts are read as they are described, and what is wrong with them is said."""

import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from fleetx.data.images import flowers
from fleetx.data.images.files import labelled_files
from fleetx.data.making.layouts import Recipe, make
from fleetx.testing import world

SMALL: dict[str, Any] = {"classes": 3, "train_images": 4, "val_images": 2, "size": 24}


def listed(folder: Path, train: str) -> Path:
    (folder / "train" / "n1").mkdir(parents=True)
    (folder / "train" / "n1" / "a b.jpeg").write_bytes(b"")
    (folder / "train.txt").write_text(train)
    return folder


def test_a_list_names_files_below_the_split(tmp_path: Path) -> None:
    found = labelled_files(listed(tmp_path, "n1/a b.jpeg 7\n\nn1/b.jpeg 0\n"), "train")
    assert [found.path(at) for at in range(2)] == [
        tmp_path / "train" / "n1" / "a b.jpeg",
        tmp_path / "train" / "n1" / "b.jpeg",
    ]
    assert found.labels.tolist() == [7, 0]
    assert found.classes == 8


def test_a_list_may_name_files_from_the_root(tmp_path: Path) -> None:
    found = labelled_files(listed(tmp_path, "train/n1/a b.jpeg 1\n"), "train")
    assert found.path(0).is_file()


def test_a_list_may_name_files_wherever_they_are(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.jpeg"
    elsewhere.write_bytes(b"its bytes")
    found = labelled_files(listed(tmp_path, f"{elsewhere} 1\nn1/a b.jpeg 0\n"), "train")
    assert found.path(0) == elsewhere
    assert found.read(0) == b"its bytes"
    assert found.read(1) == b""


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a.jpeg 1\nb.jpeg\n", "line 2: 'b.jpeg' is not 'path label'"),
        ("a.jpeg one\n", "line 1"),
        ("a.jpeg -1\n", "line 1"),
        ("\n", "lists no image"),
    ],
)
def test_a_wrong_list_is_a_clear_error(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        labelled_files(listed(tmp_path, text), "train")


def test_a_folder_of_neither_layout_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither train\.txt .* fleetx data make"):
        labelled_files(tmp_path, "train")


@pytest.mark.parametrize("layout", ["imagenet", "flowers"])
def test_what_is_made_is_read(layout: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    recipe = Recipe(layout=layout, **SMALL)
    assert make(folder, recipe)
    for split, count in (("train", 12), ("val", 6)):
        found = labelled_files(folder, split)
        assert len(found) == count
        assert np.bincount(found.labels).tolist() == [count // 3] * 3
        for at in range(count):
            assert found.path(at).read_bytes().startswith(b"\xff\xd8")
    assert not make(folder, recipe), "it is there already"
    with pytest.raises(FileExistsError, match="name a folder that does not exist"):
        make(folder, Recipe(layout=layout, **{**SMALL, "seed": 1}))
    again = tmp_path / "again"
    make(again, recipe)
    ours, theirs = labelled_files(folder, "val"), labelled_files(again, "val")
    assert ours.path(3).read_bytes() == theirs.path(3).read_bytes()


def test_flowers_follow_the_original_files(tmp_path: Path) -> None:
    jpg = tmp_path / "jpg"
    jpg.mkdir()
    for number in range(1, 7):
        (jpg / f"image_{number:05d}.jpg").write_bytes(bytes([number]))
    with tarfile.open(tmp_path / "102flowers.tgz", "w:gz") as archive:
        archive.add(jpg, "jpg")
    shutil.rmtree(jpg)
    savemat(tmp_path / "imagelabels.mat", {"labels": np.array([[1, 102, 3, 4, 5, 6]], np.uint8)})
    splits = {"trnid": [[2, 6]], "valid": [[1]], "tstid": [[3, 4, 5]]}
    savemat(
        tmp_path / "setid.mat", {name: np.array(ids, np.uint16) for name, ids in splits.items()}
    )
    train, test = labelled_files(tmp_path, "train"), labelled_files(tmp_path, "test")
    assert train.labels.tolist() == [101, 5]
    assert [train.path(at).read_bytes() for at in range(2)] == [b"\x02", b"\x06"]
    assert test.labels.tolist() == [2, 3, 4]
    savemat(tmp_path / "setid.mat", {"trnid": np.array([[9]], np.uint16)})
    with pytest.raises(ValueError, match="speaks of image 9"):
        labelled_files(tmp_path, "train")
    with pytest.raises(ValueError, match="has no array 'valid', only trnid"):
        labelled_files(tmp_path, "val")


def first_byte(folder: str) -> int:
    return labelled_files(folder, "train").path(0).read_bytes()[0]


def test_workers_unpack_once(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    make(folder, Recipe(**SMALL))
    assert world(2).run(first_byte, str(folder)) == [0xFF, 0xFF]
    kept = {path.name for path in folder.iterdir() if path.is_dir()}
    assert kept == {"jpg"}, "nothing half unpacked is left"


def test_a_damaged_archive_leaves_no_images(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    make(folder, Recipe(**SMALL))
    archive = folder / "102flowers.tgz"
    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        labelled_files(folder, "train")
    assert not [path for path in folder.iterdir() if path.is_dir()]


def read_only(path: Path) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def test_a_folder_that_allows_no_writing_needs_its_images_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made"
    make(folder, Recipe(**SMALL))
    monkeypatch.setattr(flowers, "only_one", read_only)
    with pytest.raises(ValueError, match=r"only in 102flowers\.tgz, .*Permission denied.* copy"):
        labelled_files(folder, "train")
    monkeypatch.undo()
    labelled_files(folder, "train")
    monkeypatch.setattr(flowers, "only_one", read_only)
    assert labelled_files(folder, "val").path(0).is_file()


def test_images_that_were_unpacked_in_part_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    make(folder, Recipe(**SMALL))
    labelled_files(folder, "train")
    (folder / "jpg" / "image_00002.jpg").unlink()
    with pytest.raises(ValueError, match=r"lacks 1 images, image_00002\.jpg .* remove the folder"):
        labelled_files(folder, "train")
    assert len(labelled_files(folder, "val")) == 6, "none of these is missing"
    (folder / "102flowers.tgz").unlink()
    assert len(labelled_files(folder, "train")) == 12, "the reader reports it"


@pytest.mark.parametrize("wrong", [{"layout": "coco"}, {"classes": 1}, {"size": 4}])
def test_a_wrong_recipe_is_a_clear_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"use "):
        Recipe(**wrong)


def test_without_opencv_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ImportError, match=r"pip install 'fleetx\[applications\]'"):
        make(tmp_path / "made", Recipe(**SMALL))
    assert not list(tmp_path.iterdir())
