"""The Transformer: an encoder and a decoder, for translation."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from fleetx.applications.attention import DecoderLayer, EncoderLayer, normal, visible
from fleetx.data.loader import DistributedLoader
from fleetx.data.tokens.loaders import pairs_loader

PADDING = 0


class Transformer(nn.Module):
    """The base size: six layers of 512 features on each side.

    Args:
        vocab_size: words of both languages together.
        layers: of each side.
        width: features of a word.
        heads: of attention.
        dropout: the share that is left out.
        label_smoothing: how much of the certainty is spread over all words.
    """

    def __init__(
        self,
        vocab_size: int = 32000,
        *,
        layers: int = 6,
        width: int = 512,
        heads: int = 8,
        dropout: float = 0.1,
        label_smoothing: float = 0.1,
    ) -> None:
        super().__init__()
        self.vocab_size, self.width, self.label_smoothing = vocab_size, width, label_smoothing
        self.words = nn.Embedding(vocab_size, width, padding_idx=PADDING)
        self.dropout = nn.Dropout(dropout)
        inner = 4 * width
        self.encoder = nn.ModuleList(
            EncoderLayer(width, heads, inner, dropout=dropout, smooth=False) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(width, heads, inner, dropout=dropout) for _ in range(layers)
        )
        self.head = nn.Linear(width, vocab_size, bias=False)
        normal(self, width**-0.5)
        self.head.weight = self.words.weight

    @property
    def checkpoints(self) -> list[str]:
        """Every layer of both sides, for ``recompute_configs["checkpoints"]``."""
        sides = ("encoder", "decoder")
        return [f"{side}.{at}" for side in sides for at in range(len(self.encoder))]

    def criterion(self, scores: Tensor, words: Tensor) -> Tensor:
        """The mean over the words of the target."""
        return F.cross_entropy(
            scores.flatten(0, 1),
            words.flatten(),
            ignore_index=PADDING,
            label_smoothing=self.label_smoothing,
        )

    @override
    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores of the next word at every position of the target."""
        memory, mask = self._embedded(source), visible(source, PADDING)
        for layer in self.encoder:
            memory = layer(memory, mask)
        x = self._embedded(target)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return self.head(x)  # type: ignore[no-any-return]

    def _embedded(self, tokens: Tensor) -> Tensor:
        words = self.words(tokens) * math.sqrt(self.width)
        found: Tensor = self.dropout(words + _waves(tokens, self.width))
        return found

    def get_train_dataloader(
        self, local_path: str | Path, batch_size: int = 2048, shuffle: bool = True, **options: Any
    ) -> DistributedLoader:
        """Pairs of ``train.txt``: ((source, target), the target's next words).

        Args:
            local_path: the folder of ``train.txt``.
            batch_size: tokens of a batch, padding included, or pairs with ``in_tokens=False``.
            shuffle: in an order that the number of the pass decides.
            options: ``max_seq_len``, ``in_tokens``, ``num_workers`` and ``seed``.
        """
        return self._loader(Path(local_path) / "train.txt", batch_size, shuffle, options)

    def get_val_dataloader(
        self, local_path: str | Path, batch_size: int = 2048, **options: Any
    ) -> DistributedLoader:
        """Pairs of ``val.txt``."""
        return self._loader(Path(local_path) / "val.txt", batch_size, False, options)

    def _loader(
        self, file: Path, batch_size: int, shuffle: bool, options: dict[str, Any]
    ) -> DistributedLoader:
        return pairs_loader(
            file, vocab_size=self.vocab_size, batch_size=batch_size, shuffle=shuffle, **options
        )


def _waves(tokens: Tensor, width: int) -> Tensor:
    """Sines and cosines by which positions are told apart."""
    places = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
    steps = torch.arange(0, width, 2, device=tokens.device, dtype=torch.float32)
    angles = places[:, None] * torch.exp(steps * (-math.log(10000.0) / width))
    return torch.cat((angles.sin(), angles.cos()), dim=1)
