"""Parameters as scripts give them to optimizers: in a list, or in groups with options."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor


def in_one_list(given: Iterable[Any] | None) -> tuple[list[Any] | None, dict[int, dict[str, Any]]]:
    """Parameters in one list, and the options of those that came in groups."""
    if given is None:
        return None, {}
    if isinstance(given, Tensor):
        raise TypeError("parameters is a list of parameters, got one tensor; put it into a list.")
    found: list[Any] = []
    options: dict[int, dict[str, Any]] = {}
    for entry in given:
        if isinstance(entry, dict):
            own = {key: value for key, value in entry.items() if key != "params"}
            _check_group(own)
            options |= {id(parameter): own for parameter in entry["params"]}
            found += entry["params"]
        else:
            found.append(entry)
    return found, options


def _check_group(own: Mapping[str, Any]) -> None:
    if unknown := sorted(own.keys() - {"weight_decay", "learning_rate"}):
        raise ValueError(
            f"a group of parameters sets {unknown[0]!r}, and groups may set weight_decay and "
            "learning_rate here; give the others to the optimizer."
        )
