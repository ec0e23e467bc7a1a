"""``fleetx.dataset.transformer_dataset``: pairs of sentences."""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fleetx.compat.fleetx_1.dataset.feeding import Loader, grouped, padded

START, END, UNKNOWN = 0, 1, 2


def _vocabulary(path: str | Path) -> dict[str, int]:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return {word: number for number, word in enumerate(lines)}


def transformer_data_generator(  # noqa: PLR0917 (the order of FleetX)
    src_vocab_fpath: str | Path,
    trg_vocab_fpath: str | Path,
    train_filelist: Any,
    inputs: Sequence[Any] = (),
    batch_size: int = 2048,
    shuffle: bool = True,
    phase: str = "train",
    max_length: int = 256,
) -> Loader:
    """Lines of a source and a target between a tab, as numbers of two vocabularies.

    Args:
        src_vocab_fpath: a word a line; the first three mark beginning, end and unknown words.
        trg_vocab_fpath: the same of the target.
        train_filelist: files, or a pattern of their names.
        inputs: of the model: source, target, and the words that follow.
        batch_size: pairs of a batch.
        shuffle: in a random order.
        phase: has no effect on the pairs.
        max_length: longer sentences are left out.
    """
    source, target = _vocabulary(src_vocab_fpath), _vocabulary(trg_vocab_fpath)
    given = [train_filelist] if isinstance(train_filelist, (str, Path)) else list(train_filelist)
    files = sorted(name for pattern in given for name in glob.glob(str(pattern)))

    def pairs() -> Iterator[tuple[list[int], list[int]]]:
        for name in files:
            with open(name, encoding="utf-8") as file:
                for line in file:
                    here, _, there = line.rstrip("\n").partition("\t")
                    one = [source.get(word, UNKNOWN) for word in here.split()]
                    two = [target.get(word, UNKNOWN) for word in there.split()]
                    if 0 < len(one) <= max_length and 0 < len(two) <= max_length:
                        yield one, two

    def batches() -> Iterator[Sequence[Any]]:
        for group in grouped(pairs(), batch_size, shuffle):
            yield (
                padded([[*one, END] for one, _ in group], END),
                padded([[START, *two] for _, two in group], END),
                padded([[*two, END] for _, two in group], -100),
            )

    return Loader(inputs, batches)
