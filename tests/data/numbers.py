"""A data set whose samples are their own numbers."""

from torch.utils.data import Dataset
from typing_extensions import override


class Numbers(Dataset[int]):
    """0, 1, 2 and so on."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    @override
    def __getitem__(self, index: int) -> int:
        return index
