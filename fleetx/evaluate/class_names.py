"""What the classes of a data set are called: in a file beside the list, or by their folders."""

from collections.abc import Sequence
from pathlib import Path

FILES = ("classes.txt", "labels.txt", "synset_words.txt")
"""Files of a data set in which line N is the name of class N."""


def class_names(data_dir: Path, names: Sequence[str], labels: Sequence[int]) -> dict[int, str]:
    """Class -> its name, for those that have one.

    Args:
        data_dir: the folder with the list.
        names: the inputs of the list.
        labels: their classes; -1 for those without.
    """
    for file in FILES:
        if (data_dir / file).is_file():
            lines = (data_dir / file).read_text(encoding="utf-8").splitlines()
            return {at: line.strip() for at, line in enumerate(lines) if line.strip()}
    return _by_folders(names, labels)


def _by_folders(names: Sequence[str], labels: Sequence[int]) -> dict[int, str]:
    """Names of folders, if every class has one of its own."""
    folders: dict[int, set[str]] = {}
    for name, label in zip(names, labels, strict=True):
        if label >= 0:
            folders.setdefault(label, set()).add(Path(name).parent.name)
    owned = {label: next(iter(found)) for label, found in folders.items() if len(found) == 1}
    distinct = len({*owned.values()}) == len(owned) == len(folders) and "" not in owned.values()
    return owned if distinct and len(owned) > 1 else {}
