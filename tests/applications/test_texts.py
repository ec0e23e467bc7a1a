"""Loaders of the models for text."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fleetx.applications import BertBase, Transformer
from fleetx.applications.bert import NOT_ASKED


def bert() -> BertBase:
    return BertBase(vocab_size=200, layers=1, width=8, heads=2, max_seq_len=16)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    numbers = np.random.default_rng(0)
    lines = [
        " ".join(map(str, numbers.integers(110, 200, numbers.integers(3, 20)))) for _ in range(50)
    ]
    for split in ("train", "val"):
        (tmp_path / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_words_are_hidden_and_asked_for(texts: Path) -> None:
    loader = bert().get_train_dataloader(texts, batch_size=64)
    batches = list(loader)
    assert len(batches) == len(loader)
    assert sum(len(shown) for shown, _ in batches) == 50
    hidden = 0
    for shown, asked in batches:
        assert shown.shape == asked.shape
        assert shown.numel() <= 64
        assert shown.shape[1] <= 16
        masked = shown == 103
        hidden += int(masked.sum())
        assert (asked[masked] >= 110).all(), "a hidden word is asked for"
        left = asked == NOT_ASKED
        assert ((shown[left] >= 110) | (shown[left] == 0)).all(), "and no other is changed"
        assert (asked != NOT_ASKED).any(dim=1).all(), "every text asks for something"
    assert hidden > 25
    scores = bert()(batches[0][0])
    assert torch.isfinite(BertBase.criterion(scores, batches[0][1]))


def key(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[list[int]]:
    return [shown.flatten().tolist() for shown, _ in batches]


def test_passes_differ_and_are_repeated_and_resumed(texts: Path) -> None:
    loader, again = (bert().get_train_dataloader(texts, batch_size=64) for _ in range(2))
    first, second = key(list(loader)), key(list(loader))
    assert first != second
    stopped = iter(again)
    assert key([next(stopped), next(stopped)]) == first[:2]
    state, resumed = again.state_dict(), bert().get_train_dataloader(texts, batch_size=64)
    resumed.load_state_dict(state)
    assert key(list(resumed)) == first[2:]
    assert key(list(resumed)) == second
    val = bert().get_val_dataloader(texts, batch_size=8, in_tokens=False)
    assert key(list(val)) == key(list(val))
    assert {len(shown) for shown, _ in val} == {8, 2}


def test_pairs_are_shifted_by_a_word(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("5 6 7\t1 8 9 2\n5\t1 2\n")
    model = Transformer(20, layers=1, width=8, heads=2)
    ((source, target), following), *rest = model.get_train_dataloader(
        tmp_path, batch_size=2, in_tokens=False, shuffle=False
    )
    assert not rest
    assert source.tolist() == [[5, 0, 0], [5, 6, 7]]
    assert target.tolist() == [[1, 0, 0], [1, 8, 9]]
    assert following.tolist() == [[2, 0, 0], [8, 9, 2]]
    assert model.criterion(model(source, target), following).isfinite()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("1 2\t3\n", r"line 1 has 2 text\(s\)"),
        ("1 hello\n", "no numbers"),
        ("1 200\n", "from 0 to 199"),
        ("\n", "has no text"),
    ],
)
def test_wrong_texts_are_clear_errors(text: str, match: str, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(text)
    with pytest.raises(ValueError, match=match):
        bert().get_train_dataloader(tmp_path)


def test_a_batch_must_hold_a_text(texts: Path) -> None:
    with pytest.raises(ValueError, match="no room for a text of 16"):
        bert().get_train_dataloader(texts, batch_size=8)
    with pytest.raises(FileNotFoundError, match=r"train\.txt"):
        bert().get_train_dataloader(texts / "none")
