"""Images that are generated: ten kinds of striped, coloured, noisy patterns."""

import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

CLASSES = 10
SIDE = 32


class Stripes(Dataset[tuple[Tensor, int]]):
    """Stripes in five directions and two widths; the class is the pair of both.

    Image ``i`` depends on ``i`` and ``seed`` alone, so every worker can make any of them.
    """

    def __init__(self, count: int, *, seed: int = 0, noise: float = 4.0) -> None:
        self.count, self.seed, self.noise = count, seed, noise
        steps = torch.linspace(-1, 1, SIDE)
        self.y, self.x = torch.meshgrid(steps, steps, indexing="ij")

    def __len__(self) -> int:
        """How many images there are."""
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One image of 3 x 32 x 32 and its class."""
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = int(torch.randint(CLASSES, (), generator=random))
        wiggle, phase, *colour = torch.rand(5, generator=random).tolist()
        angle = (label % 5 + 0.5 * (wiggle - 0.5)) * math.pi / 5
        width = 6.0 if label < 5 else 14.0
        wave = torch.cos(width * (self.x * math.cos(angle) + self.y * math.sin(angle)) + 7 * phase)
        image = wave * (0.4 + torch.tensor(colour).view(3, 1, 1))
        return image + self.noise * torch.randn(image.shape, generator=random), label
