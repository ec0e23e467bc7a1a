"""Which texts go together: those of about the same length, so that little is padding."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler
from typing_extensions import override

from fleetx.data.tokens.lines import Tokens


class BatchesByTokens(Sampler[list[int]]):
    """Lists of lines; a pass decides the order, and the number of batches is always the same.

    Args:
        lengths: of the lines.
        batch_size: tokens of a batch, padding included, or lines.
        in_tokens: whether ``batch_size`` counts tokens.
        shuffle: another order in every pass.
        seed: of the orders.
    """

    def __init__(
        self, lengths: Tokens, batch_size: int, *, in_tokens: bool, shuffle: bool, seed: int = 0
    ) -> None:
        longest = int(lengths.max())
        if in_tokens and batch_size < longest:
            raise ValueError(
                f"batch_size={batch_size} tokens have no room for a text of {longest}; set it to "
                "max_seq_len or more, or cut the texts with a smaller max_seq_len."
            )
        self._shuffle, self._seed, self.epoch = shuffle, seed, 0
        # Made once, of neighbours by length: all passes have the same batches in other orders.
        order = np.argsort(lengths, kind="stable")
        if shuffle:
            order = _stirred(order, lengths, seed)
        self._batches = _cut(order, lengths, batch_size if in_tokens else None, batch_size)

    def __len__(self) -> int:
        return len(self._batches)

    def set_epoch(self, epoch: int) -> None:
        """The number of the pass to come."""
        self.epoch = epoch

    @override
    def __iter__(self) -> Iterator[list[int]]:
        order = np.arange(len(self._batches))
        if self._shuffle:
            np.random.default_rng((self._seed, self.epoch)).shuffle(order)
        yield from (self._batches[at] for at in order)


def _stirred(order: Tokens, lengths: Tokens, seed: int) -> Tokens:
    """Lines of equal length in an order of chance."""
    draw = np.random.default_rng(seed).permutation(len(order))
    found: Tokens = draw[np.argsort(lengths[draw], kind="stable")]
    return found


def _cut(order: Tokens, lengths: Tokens, room: int | None, count: int) -> list[list[int]]:
    batches: list[list[int]] = [[]]
    for line in order.tolist():
        # Sorted by length, so that the new line is the longest of its batch.
        size = len(batches[-1]) + 1
        full = size * int(lengths[line]) > room if room else size > count
        if full and batches[-1]:
            batches.append([])
        batches[-1].append(line)
    return batches
