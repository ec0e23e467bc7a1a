"""``fleetx data make``: where it writes, and what it says when it cannot."""

import re
from pathlib import Path

import pytest

from fleetx.__main__ import main
from fleetx.data.images.files import labelled_files

SMALL = ("--classes", "2", "--train_images", "2", "--val_images", "1", "--size", "16")


@pytest.mark.parametrize("layout", ["flowers", "imagenet"])
def test_the_folder_that_one_stands_in(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    for _ in range(2):
        assert main(["data", "make", ".", "--layout", layout, *SMALL]) == 0
    assert tmp_path.stat().st_ino == before, "a shell that stands here goes on standing here"
    assert len(labelled_files(tmp_path, "train")) == 4
    hidden = {path.name for path in tmp_path.iterdir() if path.name.startswith(".")}
    assert hidden <= {".unpacking.lock"}


@pytest.mark.parametrize(
    ("place", "words"),
    [("file", "'.*file' is a file; name a folder"), ("file/below", r"below cannot be made \(")],
)
def test_a_file_in_the_way_is_one_sentence(
    place: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["data", "make", str(tmp_path / place), *SMALL]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(said) == 1
    assert re.search(words, said[0])
    assert (tmp_path / "file").read_text() == "mine"


def test_a_place_that_allows_no_writing_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, *args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert main(["data", "make", str(tmp_path / "new"), *SMALL]) == 2
    assert "new cannot be made (Permission denied); name a place" in capsys.readouterr().err
