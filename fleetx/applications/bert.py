"""BERT: an encoder that fills in words which were hidden from it."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from fleetx.applications.attention import EncoderLayer, normal, visible
from fleetx.data.loader import DistributedLoader
from fleetx.data.tokens.loaders import hidden_words_loader

VOCABULARIES = {"en": 30522, "ch": 21128}
PADDING, HIDDEN = 0, 103
"""The numbers of BERT's ``[PAD]`` and ``[MASK]``."""
NOT_ASKED = -100


class BertBase(nn.Module):
    """The base size: 12 layers of 768 features.

    Args:
        lang: "en" or "ch", for the size of the vocabulary of Google's models.
        vocab_size: another one.
        max_seq_len: the longest text.
        layers: how many, where it shall be smaller than BERT.
        width: features of a word.
        heads: of attention.
        dropout: the share that is left out.
    """

    size: ClassVar[tuple[int, int, int]] = (12, 768, 12)

    def __init__(
        self,
        lang: str = "en",
        *,
        vocab_size: int | None = None,
        max_seq_len: int = 512,
        layers: int | None = None,
        width: int | None = None,
        heads: int | None = None,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if vocab_size is None and lang not in VOCABULARIES:
            raise ValueError(f"lang={lang!r} is not known; use 'en' or 'ch', or set vocab_size.")
        words = vocab_size or VOCABULARIES[lang]
        count, wide, many = layers or self.size[0], width or self.size[1], heads or self.size[2]
        self.vocab_size, self.max_seq_len = words, max_seq_len
        self.words = nn.Embedding(words, wide, padding_idx=PADDING)
        self.places = nn.Embedding(max_seq_len, wide)
        self.segments = nn.Embedding(2, wide)
        self.norm, self.dropout = nn.LayerNorm(wide), nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(wide, many, 4 * wide, dropout=dropout, smooth=True) for _ in range(count)
        )
        self.transform = nn.Linear(wide, wide)
        self.transform_norm = nn.LayerNorm(wide)
        self.head = nn.Linear(wide, words)
        normal(self, 0.02)
        self.head.weight = self.words.weight

    @property
    def checkpoints(self) -> list[str]:
        """Every layer, for ``recompute_configs["checkpoints"]``."""
        return [f"layers.{at}" for at in range(len(self.layers))]

    @staticmethod
    def criterion(scores: Tensor, words: Tensor) -> Tensor:
        """The mean over the words that were hidden."""
        return F.cross_entropy(scores.flatten(0, 1), words.flatten(), ignore_index=NOT_ASKED)

    @override
    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Scores of the vocabulary at every position."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places)
        x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        x, mask = self.dropout(self.norm(x)), visible(tokens, PADDING)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.transform_norm(F.gelu(self.transform(x))))  # type: ignore[no-any-return]

    def get_train_dataloader(
        self,
        local_path: str | Path,
        batch_size: int = 4096,
        max_seq_len: int = 512,
        in_tokens: bool = True,
        shuffle: bool = True,
        **options: Any,
    ) -> DistributedLoader:
        """Texts of ``train.txt`` with hidden words, and the words; see docs/applications.md.

        Args:
            local_path: the folder of ``train.txt``.
            batch_size: tokens of a batch, padding included, or texts.
            max_seq_len: longer texts are cut.
            in_tokens: whether ``batch_size`` counts tokens.
            shuffle: in an order that the number of the pass decides.
            options: ``num_workers`` and ``seed``.
        """
        limits = {"batch_size": batch_size, "max_seq_len": max_seq_len, "in_tokens": in_tokens}
        return self._loader(Path(local_path) / "train.txt", shuffle=shuffle, **limits, **options)

    def get_val_dataloader(
        self, local_path: str | Path, batch_size: int = 4096, **options: Any
    ) -> DistributedLoader:
        """The texts of ``val.txt``, the same words hidden every time."""
        file = Path(local_path) / "val.txt"
        return self._loader(file, batch_size=batch_size, **options)

    def _loader(self, file: Path, **options: Any) -> DistributedLoader:
        length = min(options.pop("max_seq_len", 512), self.max_seq_len)
        return hidden_words_loader(
            file,
            vocab_size=self.vocab_size,
            max_seq_len=length,
            hidden=HIDDEN if self.vocab_size > HIDDEN else 1,
            not_asked=NOT_ASKED,
            **options,
        )


class BertLarge(BertBase):
    """The large size: 24 layers of 1,024 features."""

    size = (24, 1024, 16)
