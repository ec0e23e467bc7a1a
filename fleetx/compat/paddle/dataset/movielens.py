"""``paddle.dataset.movielens``: what people think of films; drawn."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import vocabulary

age_table = [1, 18, 25, 35, 45, 50, 56]
USERS, MOVIES, JOBS, CATEGORIES, TITLES = 6040, 3952, 20, 18, 5175
DRAWN = {"train": 4096, "test": 512}

Reader = Callable[[], Iterable[Any]]


@dataclass
class MovieInfo:
    """A film."""

    index: int
    categories: list[int]
    title: list[int]

    def value(self) -> list[Any]:
        """Its fields."""
        return [self.index, self.categories, self.title]


@dataclass
class UserInfo:
    """Somebody who has seen films."""

    index: int
    is_male: bool
    age: int
    job_id: int

    def value(self) -> list[Any]:
        """Its fields."""
        return [[self.index], [0 if self.is_male else 1], [self.age], [self.job_id]]


@cache
def movie_info() -> dict[int, MovieInfo]:
    """Number -> film."""
    chance = np.random.default_rng(1)
    return {
        number: MovieInfo(
            number,
            chance.integers(0, CATEGORIES, 2).tolist(),
            chance.integers(0, TITLES, 4).tolist(),
        )
        for number in range(1, MOVIES + 1)
    }


@cache
def user_info() -> dict[int, UserInfo]:
    """Number -> person."""
    chance = np.random.default_rng(2)
    return {
        number: UserInfo(
            number,
            bool(chance.integers(2)),
            int(chance.integers(len(age_table))),
            int(chance.integers(JOBS + 1)),
        )
        for number in range(1, USERS + 1)
    }


def _split(name: str) -> Reader:
    common.drawn("movielens")

    def reader() -> Iterator[list[Any]]:
        chance = np.random.default_rng(3 if name == "train" else 4)
        people, films = user_info(), movie_info()
        for _ in range(DRAWN[name]):
            who, what = int(chance.integers(1, USERS + 1)), int(chance.integers(1, MOVIES + 1))
            score = float((who * 7 + what * 3) % 5 + 1) * 2 - 5.0
            index, kinds, title = films[what].value()
            yield [*people[who].value(), [index], kinds, title, [score]]

    return reader


def train() -> Reader:
    """A reader of the training set."""
    return _split("train")


def test() -> Reader:
    """A reader of the test set."""
    return _split("test")


def get_movie_title_dict() -> dict[str, int]:
    """Words of titles -> numbers."""
    return vocabulary(TITLES)


def movie_categories() -> dict[str, int]:
    """Kinds of films -> numbers."""
    return vocabulary(CATEGORIES)


def max_movie_id() -> int:
    """The largest number of a film."""
    return MOVIES


def max_user_id() -> int:
    """The largest number of a person."""
    return USERS


def max_job_id() -> int:
    """The largest number of an occupation."""
    return JOBS
