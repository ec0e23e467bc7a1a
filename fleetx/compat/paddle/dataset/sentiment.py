"""``paddle.dataset.sentiment``: words of a review, and whether it is a good one; drawn."""

from collections.abc import Callable, Iterable
from typing import Any

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import sentences, vocabulary

NUM_TRAINING_INSTANCES, NUM_TOTAL_INSTANCES = 1600, 2000
WORDS = 4000

Reader = Callable[[], Iterable[Any]]


def get_word_dict() -> list[tuple[str, int]]:
    """Words and their numbers."""
    return list(vocabulary(WORDS).items())


def train() -> Reader:
    """A reader of the training set."""
    common.drawn("sentiment")
    return lambda: sentences(WORDS, NUM_TRAINING_INSTANCES, "sentiment train")


def test() -> Reader:
    """A reader of the test set."""
    common.drawn("sentiment")
    count = NUM_TOTAL_INSTANCES - NUM_TRAINING_INSTANCES
    return lambda: sentences(WORDS, count, "sentiment test")
