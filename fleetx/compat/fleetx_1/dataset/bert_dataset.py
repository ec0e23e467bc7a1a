"""``fleetx.dataset.bert_dataset``: texts with hidden words, over fleetx's own loader."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fleetx.compat.fleetx_1.dataset.feeding import Loader
from fleetx.data.tokens.loaders import hidden_words_loader

NOT_ASKED = -100
VOCABULARIES = {"en": 30522, "ch": 21128}


def load_bert_dataset(  # noqa: PLR0917 (the order of FleetX)
    data_dir: str | Path,
    vocab_path: str | None = None,
    inputs: Sequence[Any] = (),
    batch_size: int = 4096,
    lang: str = "en",
    phase: str = "train",
    max_seq_len: int = 512,
    in_tokens: bool = True,
    shuffle: bool = True,
    vocab_size: int | None = None,
) -> Loader:
    """Lines of numbers of ``train.txt`` or ``val.txt``, with words hidden.

    Args:
        data_dir: the folder.
        vocab_path: has no effect: the files have numbers, not words.
        inputs: of the model: tokens, and the words that were hidden.
        batch_size: tokens of a batch, or texts.
        lang: "en" or "ch", which says how many words there are.
        phase: "train", or the validation file.
        max_seq_len: longer texts are cut.
        in_tokens: whether ``batch_size`` counts tokens.
        shuffle: in another order in each pass.
        vocab_size: instead of the language's.
    """
    words = vocab_size or VOCABULARIES[lang]
    loader = hidden_words_loader(
        Path(data_dir) / ("train.txt" if phase == "train" else "val.txt"),
        vocab_size=words,
        batch_size=batch_size,
        max_seq_len=max_seq_len,
        hidden=103 if words > 103 else 1,
        not_asked=NOT_ASKED,
        in_tokens=in_tokens,
        shuffle=shuffle and phase == "train",
    )

    def batches() -> Iterator[Sequence[Any]]:
        yield from loader

    return Loader(inputs, batches)
