"""Small frozen records that travel as JSON: a kind and its fields, checked on arrival."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

Record = TypeVar("Record")


def to_plain(record: Any) -> dict[str, Any]:
    """The record as plain data."""
    return {"kind": type(record).__name__, **dataclasses.asdict(record)}


def from_plain(plain: Any, kinds: Mapping[str, type[Record]]) -> Record:
    """The record that ``to_plain`` described; ``ValueError`` when it is none of the kinds."""
    if not isinstance(plain, dict) or plain.get("kind") not in kinds:
        raise ValueError(f"{plain!r} is none of {', '.join(kinds)}")
    cls: Any = kinds[plain["kind"]]
    fields = {field.name for field in dataclasses.fields(cls)}
    given = {name: value for name, value in plain.items() if name != "kind"}
    if strange := given.keys() - fields:
        raise ValueError(f"{plain['kind']} has no {', '.join(sorted(strange))}")
    made: Record = cls(**given)
    return made


def check_number(owner: str, name: str, value: Any, *, above: float | None = None) -> None:
    """Refuse what is no finite number, or one that is too small."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not abs(value) < float("inf"):
        raise ValueError(f"{owner}({name}={value!r}) is no number; pass a finite one")
    if above is not None and value <= above:
        raise ValueError(f"{owner}({name}={value!r}) is too small; pass more than {above:g}")
