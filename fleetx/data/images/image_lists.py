"""ImageNet as lists of files: ``train.txt`` and ``val.txt`` with 'path label' lines."""

from collections.abc import Iterator
from pathlib import Path

from fleetx.data.images.labelled import LabelledFiles


def is_there(folder: Path, split: str) -> bool:
    """Whether the folder has a list of the split."""
    return (folder / f"{split}.txt").is_file()


def read(folder: Path, split: str) -> LabelledFiles:
    """The files of a list; paths are absolute, or from the folder of the split or the root."""
    lines = list(_lines(folder / f"{split}.txt"))
    paths, labels = [path for path, _ in lines], [label for _, label in lines]
    base = folder / split
    # FleetX's own small data sets wrote paths from the root; the first one tells which it is.
    if not (base / paths[0]).exists() and (folder / paths[0]).exists():
        base = folder
    return LabelledFiles.of(base, paths, labels)


def _lines(file: Path) -> Iterator[tuple[str, int]]:
    empty = True
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                empty = False
                yield _entry(line.strip(), f"{file}, line {number}")
    if empty:
        raise ValueError(f"{str(file)!r} lists no image; write a line 'path label' for each.")


def _entry(line: str, place: str) -> tuple[str, int]:
    path, _, label = line.rpartition(" ")
    if not path or not label.isdecimal():
        raise ValueError(
            f"{place}: {line!r} is not 'path label' with a label of 0, 1, 2, ...; separate the "
            "path from the number by one space."
        )
    return path.strip(), int(label)
