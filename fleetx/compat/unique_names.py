"""Names as Paddle counts them: ``fc_0``, ``fc_0.w_0``, ``fc_1``."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class UniqueNameGenerator:
    """Counts each key from 0; ``prefix`` comes before every name."""

    def __init__(self, prefix: str | None = None) -> None:
        self.ids: Counter[str] = Counter()
        self.prefix = prefix or ""

    def __call__(self, key: str) -> str:
        """The next name of a key."""
        number = self.ids[key]
        self.ids[key] += 1
        return f"{self.prefix}{key}_{number}"


_generators = [UniqueNameGenerator()]
"""The one in force is the last."""


def generate(key: str) -> str:
    """The next name of a key."""
    return _generators[-1](key)


def switch(new_generator: UniqueNameGenerator | None = None) -> UniqueNameGenerator:
    """Count by another generator from now on; returns the one before."""
    before, _generators[-1] = _generators[-1], new_generator or UniqueNameGenerator()
    return before


@contextmanager
def guard(new_generator: UniqueNameGenerator | str | None = None) -> Iterator[None]:
    """Count from 0 inside; a string is put before every name."""
    if isinstance(new_generator, str):
        new_generator = UniqueNameGenerator(new_generator)
    before = switch(new_generator)
    try:
        yield
    finally:
        switch(before)
