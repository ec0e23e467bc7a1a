"""A small transformer, a stream of batches, and training in one process to compare with."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, LENGTH, LAYERS = 32, 16, 8, 6, 4
BATCH = 16
"""Samples in a global batch, whatever the layout."""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        # A bias of the keys changes nothing, so its gradient is rounding errors alone.
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            layer(x).view(batch, length, HEADS, width // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1) / (width // HEADS) ** 0.5
        mixed = scores.softmax(dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, tied: bool = False, layers: int = LAYERS) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build(tied: bool = False, seed: int = 0, layers: int = LAYERS) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(tied, layers)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + number)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def plain(
    steps: int,
    optimizer: str = "adam",
    tied: bool = False,
    merged: int = 1,
    low: torch.dtype | None = None,
    *,
    layers: int = LAYERS,
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights of one process; ``merged`` batches make one update."""
    model = build(tied, layers=layers)
    update, losses = OPTIMIZERS[optimizer](model.parameters()), []
    for number in range(steps):
        tokens, targets = batch(number)
        with torch.autocast("cpu", dtype=low, enabled=low is not None):
            outputs = model(tokens)
        found = loss(outputs.float(), targets)
        (found / merged).backward()
        losses.append(float(found.detach()))
        if (number + 1) % merged == 0:
            update.step()
            update.zero_grad()
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}
