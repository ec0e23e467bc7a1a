"""Drawn flowers in the layout of ImageNet or in the archives of Flowers-102."""

import io
import json
import shutil
import tarfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fleetx.data.images import flowers
from fleetx.data.images.mat_file import write_mat
from fleetx.data.making.pictures import flower, jpeg
from fleetx.data.requirements import require

RECIPE = "made.json"
"""What the data set was made from; the same recipe gives the same bytes."""
Progress = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that a made data set depends on."""

    layout: str = "flowers"
    classes: int = 10
    train_images: int = 40
    """Of each class."""
    val_images: int = 10
    """Of each class."""
    size: int = 96
    """Pixels on the short side, at least."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if self.layout not in LAYOUTS:
            known = " or ".join(LAYOUTS)
            raise ValueError(f"the layout {self.layout!r} is not known; use {known}.")
        least = {"classes": 2, "train_images": 1, "val_images": 1, "size": 16}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name}={getattr(self, name)} is too small; use {value} or more.")

    @property
    def total(self) -> int:
        """How many images there will be."""
        return self.classes * (self.train_images + self.val_images)

    def images(self, split: str) -> Iterator[tuple[int, bytes]]:
        """Labels and files of a split, the classes in turn."""
        count = self.train_images if split == "train" else self.val_images
        for at in range(count * self.classes):
            numbers = np.random.default_rng((self.seed, split == "val", at))
            label = at % self.classes
            yield label, jpeg(flower(label, self.size, numbers))


def make(folder: Path, recipe: Recipe, progress: Progress = lambda: None) -> bool:
    """Draw a data set; False if the same one is there already.

    It is written elsewhere and moved there at the end, so that there is never a part.
    """
    exists = folder.exists()
    if exists and not folder.is_dir():
        raise FileExistsError(f"{str(folder)!r} is a file; name a folder.")
    if exists and any(folder.iterdir()):
        if _recipe_of(folder) == asdict(recipe):
            return False
        raise FileExistsError(
            f"{str(folder)!r} has other files in it, which shall not be mixed with new ones; name "
            "a folder that does not exist, or remove this one."
        )
    require("cv2", "drawing images")
    drawn = (folder if exists else folder.parent) / f".{folder.name}-{uuid.uuid4().hex[:8]}"
    try:
        drawn.mkdir(parents=True)
        LAYOUTS[recipe.layout](drawn, recipe, progress)
        (drawn / RECIPE).write_text(json.dumps(asdict(recipe), indent=2), encoding="utf-8")
        if exists:
            _move(drawn, folder)
        else:
            drawn.rename(folder)
    finally:
        shutil.rmtree(drawn, ignore_errors=True)
    return True


def _move(drawn: Path, folder: Path) -> None:
    """Into a folder that stays the same one: somebody may stand in it. The recipe comes last."""
    for path in sorted(drawn.iterdir(), key=lambda path: path.name == RECIPE):
        path.rename(folder / path.name)


def _imagenet(folder: Path, recipe: Recipe, progress: Progress) -> None:
    for split in ("train", "val"):
        lines = []
        for at, (label, data) in enumerate(recipe.images(split), 1):
            group = f"n{label + 1:08d}"
            name = f"ILSVRC2012_val_{at:08d}.jpeg"
            path = name if split == "val" else f"{group}/{group}_{at}.jpeg"
            (folder / split / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / split / path).write_bytes(data)
            lines.append(f"{path} {label}\n")
            progress()
        (folder / f"{split}.txt").write_text("".join(lines), encoding="utf-8")


def _flowers(folder: Path, recipe: Recipe, progress: Progress) -> None:
    labels: list[int] = []
    numbers: dict[str, list[int]] = {"train": [], "val": []}
    with tarfile.open(folder / flowers.IMAGES, "w:gz", compresslevel=1) as archive:
        for split, mine in numbers.items():
            for label, data in recipe.images(split):
                labels.append(label + 1)
                mine.append(len(labels))
                entry = tarfile.TarInfo(f"{flowers.UNPACKED}/image_{len(labels):05d}.jpg")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
                progress()
    write_mat(folder / flowers.LABELS, {"labels": np.array(labels, np.uint16)})
    splits = {"trnid": numbers["train"], "valid": numbers["val"], "tstid": numbers["val"]}
    write_mat(
        folder / flowers.SPLITS,
        {name: np.array(found, np.uint32) for name, found in splits.items()},
    )


LAYOUTS: dict[str, Callable[[Path, Recipe, Progress], None]] = {
    "flowers": _flowers,
    "imagenet": _imagenet,
}


def _recipe_of(folder: Path) -> object:
    try:
        return json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
