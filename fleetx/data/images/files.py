"""Which image files belong to a split and what is on them, whatever the layout of the folder."""

from pathlib import Path

from fleetx.data.images import flowers, image_lists
from fleetx.data.images.labelled import LabelledFiles

__all__ = ["LabelledFiles", "labelled_files"]


def labelled_files(folder: str | Path, split: str) -> LabelledFiles:
    """The files of a split: of ``train.txt`` or ``val.txt``, or of the archives of Flowers-102.

    Args:
        folder: the root of the data set.
        split: "train" or "val", and for Flowers-102 also "test".
    """
    root = Path(folder)
    if image_lists.is_there(root, split):
        return image_lists.read(root, split)
    if flowers.is_there(root):
        return flowers.read(root, split)
    raise FileNotFoundError(
        f"{str(folder)!r} has neither {split}.txt (lines of 'path label') nor the archives of "
        f"Flowers-102 ({', '.join(flowers.ARCHIVES)}); set it to the root of such a data set, or "
        f"make one: fleetx data make {folder}"
    )
