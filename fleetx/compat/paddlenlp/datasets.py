"""``paddlenlp.datasets``."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import sentences
from fleetx.compat.paddle.io.dataset import Dataset

SPLITS = {"train": 512, "dev": 128, "test": 128}


class MapDataset(Dataset):
    """Samples in memory."""

    def __init__(self, data: Sequence[Any]) -> None:
        self.data, self.new_data = list(data), list(data)
        self.label_list = ["0", "1"]

    @override
    def __getitem__(self, idx: int) -> Any:
        return self.new_data[idx]

    @override
    def __len__(self) -> int:
        return len(self.new_data)

    def map(self, fn: Callable[[Any], Any], lazy: bool = False) -> "MapDataset":
        """The same with a function over every sample."""
        self.new_data = [fn(sample) for sample in self.new_data]
        return self

    def filter(self, fn: Callable[[Any], bool]) -> "MapDataset":
        """Those for which a function is true."""
        self.new_data = [sample for sample in self.new_data if fn(sample)]
        return self


def load_dataset(path_or_read_func: Any, name: str | None = None, splits: Any = None) -> Any:
    """``chnsenticorp`` from files or drawn, or what a function of the script reads.

    Args:
        path_or_read_func: the name, or a function that yields samples.
        name: refused: a part of a collection that is not here.
        splits: "train", "dev" and "test", one or several.
    """
    if callable(path_or_read_func):
        return MapDataset(list(path_or_read_func()))
    if path_or_read_func != "chnsenticorp" or name is not None:
        raise ValueError(
            f"load_dataset({path_or_read_func!r}) is not covered; only 'chnsenticorp' is. Read the "
            "files by a function, and pass that."
        )
    wanted = [splits] if isinstance(splits, str) else list(splits or SPLITS)
    found = [MapDataset(list(_samples(split))) for split in wanted]
    return found[0] if isinstance(splits, str) else tuple(found)


def _samples(split: str) -> Iterator[dict[str, Any]]:
    path = common.found("chnsenticorp", f"{split}.tsv")
    if path is None:
        common.drawn("chnsenticorp")
        for words, label in sentences(2000, SPLITS[split], f"chnsenticorp {split}"):
            yield {"text": "".join(chr(0x4E00 + word) for word in words), "label": label}
        return
    for line in Path(path).read_text(encoding="utf-8").splitlines()[1:]:
        parts = line.split("\t")
        yield {"text": parts[-1], "label": int(parts[0]) if parts[0].isdigit() else int(parts[1])}
