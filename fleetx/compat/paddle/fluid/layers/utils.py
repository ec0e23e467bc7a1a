"""``paddle.fluid.layers.utils``: functions over nests of lists, tuples and dicts."""

from collections.abc import Callable, Sequence
from typing import Any


def is_sequence(seq: Any) -> bool:
    """Whether it holds others."""
    return isinstance(seq, (list, tuple, dict))


def map_structure(func: Callable[..., Any], *structure: Any) -> Any:
    """The same nest, with what a function makes of each entry."""
    head = structure[0]
    if isinstance(head, dict):
        return type(head)((key, map_structure(func, *(s[key] for s in structure))) for key in head)
    if isinstance(head, (list, tuple)):
        parts = [map_structure(func, *entries) for entries in zip(*structure, strict=True)]
        return type(head)(*parts) if hasattr(head, "_fields") else type(head)(parts)
    return func(*structure)


def flatten(nest: Any) -> list[Any]:
    """All entries of a nest, in order; those of dicts by their keys."""
    if isinstance(nest, dict):
        return [leaf for key in sorted(nest) for leaf in flatten(nest[key])]
    if isinstance(nest, (list, tuple)):
        return [leaf for part in nest for leaf in flatten(part)]
    return [nest]


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """A nest of the form of another, with these entries."""
    left = iter(flat_sequence)
    return _packed(structure, left)


def _packed(structure: Any, left: Any) -> Any:
    if isinstance(structure, dict):
        return {key: _packed(structure[key], left) for key in sorted(structure)}
    if isinstance(structure, (list, tuple)):
        return type(structure)(_packed(part, left) for part in structure)
    return next(left)


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Refuse nests of different form."""
    if len(flatten(nest1)) != len(flatten(nest2)):
        raise ValueError(
            f"two nests have {len(flatten(nest1))} and {len(flatten(nest2))} entries, and must be "
            "of one form."
        )


def convert_to_list(value: Any, n: int, name: str, dtype: Any = int) -> list[Any]:
    """A list of so many numbers."""
    if isinstance(value, dtype):
        return [value] * n
    found = list(value)
    if len(found) != n:
        raise ValueError(f"{name} has {len(found)} numbers and needs {n}: {value!r}.")
    return found
