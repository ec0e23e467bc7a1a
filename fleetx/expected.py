"""What a public call takes, said in a sentence to whoever passes something else.

For arguments of a plainly wrong kind: without it they surface as an ``AttributeError`` somewhere
inside, or only after hours. Values of the right kind are judged by whoever uses them.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from reprlib import repr as shortened
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Kind:
    """What an argument must be."""

    words: str
    """With an article, for "f() takes as x …"."""
    fits: Callable[[Any], bool]

    def __or__(self, other: None) -> "Kind":
        """The same, or None: ``FUNCTION | None``."""
        return Kind(f"{self.words}, or None", lambda value: value is None or self.fits(value))

    def such_as(self, words: str) -> "Kind":
        """The same in the words of one call."""
        return Kind(words, self.fits)


def a(kind: Any, words: str) -> Kind:
    """An instance of a class, or of one of a union."""
    return Kind(words, lambda value: isinstance(value, kind))


FUNCTION = Kind("a function", callable)
CRITERION = Kind(
    "a function of outputs and targets, such as torch.nn.functional.cross_entropy or "
    "torch.nn.CrossEntropyLoss(), with its brackets",
    lambda value: callable(value) and not isinstance(value, type),
)
MAPPING = a(Mapping, "a dict")
PATH = a(str | os.PathLike, "a path")
NUMBER = Kind("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool))
WHOLE = Kind(
    "a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)
)
FLAG = a(bool, "True or False")
ITERABLE = Kind("an iterable", lambda value: isinstance(value, Iterable) and not _is_text(value))


def _is_text(value: object) -> bool:
    return isinstance(value, str | bytes)


def expect(call: str, name: str, value: object, kind: Kind) -> None:
    """Refuse an argument that is not of its kind."""
    if not kind.fits(value):
        raise TypeError(f"{call}() takes as {name} {kind.words}; got {shortened(value)}")


def takes(call: str, **kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the named arguments of a function before it runs; the others are its own business."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs).arguments
            for name, kind in kinds.items():
                if name in given:
                    expect(call, name, given[name], kind)
            return function(*args, **kwargs)

        return checked

    return decorate
