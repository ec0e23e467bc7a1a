"""Batches of texts for this worker."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fleetx.data.loader import DistributedLoader, distributed_loader
from fleetx.data.tokens.batches import BatchesByTokens
from fleetx.data.tokens.lines import TokenLines, Tokens

PADDING = 0
HIDDEN_SHARE = 0.15


def hidden_words_loader(
    file: Path,
    *,
    vocab_size: int,
    batch_size: int,
    max_seq_len: int,
    hidden: int,
    not_asked: int,
    in_tokens: bool = True,
    shuffle: bool = False,
    num_workers: int = 0,
    seed: int = 0,
) -> DistributedLoader:
    """Texts with hidden words, and the words that were there.

    Args:
        file: a text a line.
        vocab_size: of the numbers in it.
        batch_size: tokens of a batch, or texts.
        max_seq_len: longer texts are cut.
        hidden: the number that hides a word.
        not_asked: what is asked at all other positions.
        in_tokens: whether ``batch_size`` counts tokens.
        shuffle: in an order that the number of the pass decides.
        num_workers: processes that read.
        seed: of order and hiding.
    """
    lines = TokenLines(file, parts=1, vocab_size=vocab_size, max_seq_len=max_seq_len)
    texts = HiddenWords(lines, hidden, not_asked, vocab_size, seed, stable=not shuffle)
    order = BatchesByTokens(
        lines.lengths(), batch_size, in_tokens=in_tokens, shuffle=shuffle, seed=seed
    )
    return _loader(texts, order, num_workers)


def pairs_loader(
    file: Path,
    *,
    vocab_size: int,
    batch_size: int,
    max_seq_len: int = 256,
    in_tokens: bool = True,
    shuffle: bool = False,
    num_workers: int = 0,
    seed: int = 0,
) -> DistributedLoader:
    """((source, target), next words of the target); the arguments are those above.

    A target is read from its first to its last but one word, and the next one is asked for, so
    it begins with the mark of a beginning and ends with that of an end.
    """
    lines = TokenLines(file, parts=2, vocab_size=vocab_size, max_seq_len=max_seq_len)
    order = BatchesByTokens(
        lines.lengths(), batch_size, in_tokens=in_tokens, shuffle=shuffle, seed=seed
    )
    return _loader(Pairs(lines), order, num_workers)


class Pairs(Dataset[Any]):
    """Batches of pairs, padded."""

    def __init__(self, lines: TokenLines) -> None:
        self._lines = lines

    def __getitems__(self, indices: Sequence[int]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """One batch."""
        sources, targets = zip(*(self._lines[index] for index in indices), strict=True)
        given = padded([target[:-1] for target in targets], PADDING)
        return (padded(sources, PADDING), given), padded([t[1:] for t in targets], PADDING)


class HiddenWords(Dataset[Any]):
    """Batches of texts; which words are hidden depends on seed, epoch and line alone."""

    def __init__(
        self,
        lines: TokenLines,
        hidden: int,
        not_asked: int,
        vocab_size: int,
        seed: int,
        *,
        stable: bool,
    ) -> None:
        self._lines, self._hidden, self._not_asked = lines, hidden, not_asked
        self._vocab_size, self._seed, self._stable, self.epoch = vocab_size, seed, stable, 0

    def set_epoch(self, epoch: int) -> None:
        """Hide other words than in the last pass."""
        self.epoch = 0 if self._stable else epoch

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """One batch."""
        shown, asked = zip(*(self._hide(index) for index in indices), strict=True)
        return padded(shown, PADDING), padded(asked, self._not_asked)

    def _hide(self, index: int) -> tuple[Tokens, Tokens]:
        """Of the chosen words eight in ten are hidden, one is another word and one is left."""
        (text,) = self._lines[index]
        numbers = np.random.default_rng((self._seed, self.epoch, index))
        chosen = numbers.random(len(text)) < HIDDEN_SHARE
        chosen[numbers.integers(len(text))] = True
        fate = numbers.random(len(text))
        shown = np.where(chosen & (fate < 0.8), self._hidden, text)
        other = numbers.integers(1, self._vocab_size, len(text))
        shown = np.where(chosen & (fate >= 0.9), other, shown)
        return shown, np.where(chosen, text, self._not_asked)


def padded(texts: Sequence[Tokens], padding: int) -> Tensor:
    """Texts below each other, the shorter ones filled up."""
    found = torch.full((len(texts), max(map(len, texts))), padding)
    for row, text in zip(found, texts, strict=True):
        row[: len(text)] = torch.from_numpy(text)
    return found


def _loader(texts: Dataset[Any], order: BatchesByTokens, num_workers: int) -> DistributedLoader:
    loader = DataLoader(
        texts,
        batch_sampler=order,
        num_workers=num_workers,
        collate_fn=_as_is,
        pin_memory=torch.cuda.is_available(),
    )
    return distributed_loader(loader)


def _as_is(batch: Any) -> Any:
    """The data set has made a batch already."""
    return batch
