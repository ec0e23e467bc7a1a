"""The order of a pass over the data."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler
from typing_extensions import override


class SeededByPass(Sampler[int]):
    """Another order in every pass, and in every run the same one for the same pass."""

    def __init__(self, length: int, seed: int = 0) -> None:
        self.length, self.seed, self.epoch = length, seed, 0

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        """The number of the pass to come."""
        self.epoch = epoch

    @override
    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        yield from torch.randperm(self.length, generator=generator).tolist()
