"""Options: typed, ranged values that are checked at the moment they are assigned."""

import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Protocol, get_args, get_origin, get_type_hints

from fleetx.near_names import did_you_mean


class Limit(Protocol):
    """A rule about one value, put into an annotation: ``Annotated[int, AtLeast(1)]``."""

    def refusal(self, value: Any) -> str | None:
        """What the value must be, or None when it is fine."""


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """Not below ``bound``."""

    bound: float

    def refusal(self, value: Any) -> str | None:
        """Say what was expected of a number that is too small."""
        return None if value >= self.bound else f"at least {self.bound:g}"


@dataclasses.dataclass(frozen=True)
class Above:
    """Strictly above ``bound``."""

    bound: float

    def refusal(self, value: Any) -> str | None:
        """Say what was expected of a number that is too small."""
        return None if value > self.bound else f"above {self.bound:g}"


@dataclasses.dataclass(frozen=True)
class Below:
    """Strictly below ``bound``."""

    bound: float

    def refusal(self, value: Any) -> str | None:
        """Say what was expected of a number that is too large."""
        return None if value < self.bound else f"below {self.bound:g}"


@dataclasses.dataclass(frozen=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def refusal(self, value: Any) -> str | None:
        """List the words that are known."""
        known = ", ".join(repr(word) for word in self.words)
        return None if value in self.words else f"one of {known}"


@dataclasses.dataclass(frozen=True)
class Unset:
    """A value that stands for "not set" and escapes the limits."""

    value: object


class Config:
    """Base of every options dataclass: checks and normalises each field when it is made.

    A subclass is ``@dataclass(frozen=True, kw_only=True)``; rules that involve several fields go
    into ``consistent``.
    """

    label: ClassVar[str] = ""
    """How users spell the owner of the options, such as ``amp_configs``; empty at the top level."""

    def __post_init__(self) -> None:
        for name, annotation in annotations(type(self)).items():
            value = check(self.spelled(name), annotation, getattr(self, name))
            object.__setattr__(self, name, value)
        self.consistent()

    def consistent(self) -> None:
        """Refuse options that contradict each other."""

    @classmethod
    def spelled(cls, name: str) -> str:
        """The option as a user would write it."""
        return f"{cls.label}[{name!r}]" if cls.label else name

    def values(self) -> dict[str, Any]:
        """All options by name, in the order of their declaration."""
        return {name: getattr(self, name) for name in annotations(type(self))}

    @classmethod
    def merged(cls, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        """The options ``old`` updated by ``new``, checked and in normal form."""
        known = annotations(cls)
        for name in new:
            if name not in known:
                message = f"{cls.label} has no option {name!r}"
                raise ValueError(unknown(message, str(name), known))
        chosen = dict(old) | dict(new)
        checked = cls(**chosen)
        return {name: getattr(checked, name) for name in known if name in chosen}


def annotations(cls: type[Config]) -> dict[str, Any]:
    """Field name -> annotation with its limits, in the order of declaration."""
    known: dict[str, Any] = _annotations(cls)  # type: ignore[arg-type]  # mypy's idea of a hash
    return known


@cache
def _annotations(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def default(cls: type[Config], name: str) -> Any:
    """The value of an option that nobody set."""
    return getattr(_untouched(cls), name)  # type: ignore[arg-type]  # mypy's idea of a hash


@cache
def _untouched(cls: Any) -> Any:
    """The options as they are when nobody sets one; they cannot change, so one object will do."""
    return cls()


def plain_type(annotation: Any) -> Any:
    """The annotation without its limits: ``Annotated[int, AtLeast(1)]`` -> ``int``."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def check(label: str, annotation: Any, value: Any) -> Any:
    """The value in normal form; ``TypeError`` or ``ValueError`` when it does not fit."""
    kind = plain_type(annotation)
    limits: tuple[Any, ...] = get_args(annotation)[1:] if kind is not annotation else ()
    items = _items(label, kind, value) if get_origin(kind) is tuple else None
    normal = items if items is not None else _scalar(label, kind, value)
    if any(isinstance(limit, Unset) and normal == limit.value for limit in limits):
        return normal
    _finite(label, items if items is not None else (normal,), value)
    for limit in limits:
        if not isinstance(limit, Unset):
            _within(label, limit, items if items is not None else (normal,), value)
    return normal


def _finite(label: str, items: tuple[Any, ...], value: Any) -> None:
    if any(isinstance(item, float) and not math.isfinite(item) for item in items):
        raise ValueError(f"{label} must be finite, got {value!r}")


def _within(label: str, limit: Limit, items: tuple[Any, ...], value: Any) -> None:
    for item in items:
        if expected := limit.refusal(item):
            raise ValueError(f"{label} must be {expected}, got {value!r}")


def _items(label: str, kind: Any, value: Any) -> tuple[Any, ...]:
    item = get_args(kind)[0]
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise TypeError(f"{label} must be a list of {_NAMES[item]}s, got {value!r}")
    return tuple(_scalar(f"each item of {label}", item, element) for element in value)


_NAMES = {bool: "True or False", int: "whole number", float: "number", str: "string"}


def _scalar(label: str, kind: Any, value: Any) -> Any:
    accepted = {bool: bool, int: Integral, float: Real, str: str}[kind]
    wrong = not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool))
    if wrong:
        article = "" if kind is bool else "a "
        raise TypeError(f"{label} must be {article}{_NAMES[kind]}, got {value!r}")
    return kind(value)


def unknown(message: str, word: str, known: Mapping[str, Any] | list[str]) -> str:
    """The message, completed by the nearest known names or by all of them."""
    return f"{message}; {did_you_mean(word, known)}"
