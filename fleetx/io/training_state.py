"""The state of optimizer and strategies as tensors by name, and back."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

MARK = "@"
"""Between the name of a parameter and that of what an optimizer keeps for it."""
STRATEGIES = "@strategies"
PART = "#part"
"""Behind the path of a tensor that is one worker's part of what is spread as a parameter is."""

_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def to_tensors(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Tensor]:
    """What ``DistributedOptimizer.state_dict`` returned, flat; hyperparameters are the script's.

    Args:
        state: with parameters by number.
        names: the parameters in that order.
    """
    found: dict[str, Tensor] = {}
    for number, kept in state["state"].items():
        for key, value in kept.items():
            found |= dict(leaves(f"{names[number]}{MARK}{key}", value))
    if strategies := state.get("strategies"):
        found |= dict(leaves(STRATEGIES, strategies))
    return found


def to_state(tensors: Mapping[str, Tensor], like: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The inverse: a state for ``DistributedOptimizer.load_state_dict``."""
    found_tree = tree(tensors)
    numbers = {name: number for number, name in enumerate(names)}
    state = {numbers[name]: kept for name, kept in found_tree.items() if name in numbers}
    return {**like, "state": state, "strategies": found_tree.get(STRATEGIES, {})}


def leaves(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors as they are; everything else with its kind behind a #."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (list, tuple, Mapping)):
        yield f"{path}#{_kind(path, value)}", torch.tensor(len(value))
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves(f"{path}{MARK}{key}", item)
    else:
        yield _number(path, value)


def _kind(path: str, value: Any) -> str:
    """Numbers must come back as numbers where they are keys, as milestones of a schedule are."""
    if not isinstance(value, Mapping):
        return "list"
    kinds = {type(key) for key in value}
    if kinds <= {str}:
        return "dict"
    if kinds == {int}:
        return "numbered"
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise TypeError(f"{path} has keys of the kind {names}; name all by strings, or all by numbers")


def _number(path: str, value: Any) -> tuple[str, Tensor]:
    if value is None:
        return f"{path}#none", torch.empty(0)
    if isinstance(value, str):
        return f"{path}#str", torch.tensor(list(value.encode()), dtype=torch.uint8)
    if type(value) in _NUMBERS:
        return f"{path}#{type(value).__name__}", torch.tensor(value, dtype=_NUMBERS[type(value)])
    raise TypeError(f"{path} is a {type(value).__name__}, which cannot be saved as a tensor")


def tree(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The inverse: what the tensors were before ``leaves``, by the first part of their paths."""
    root: dict[str, Any] = {}
    counted: list[tuple[dict[str, Any], str, str]] = []
    for full, tensor in sorted(tensors.items(), key=lambda item: item[0].count(MARK)):
        path, _, kind = full.partition("#")
        lead = STRATEGIES if path.startswith(STRATEGIES) else path.split(MARK)[0]
        keys = [lead, *filter(None, path[len(lead) :].split(MARK))]
        branch = root
        for key in keys[:-1]:
            branch = branch.setdefault(key, {})
        if kind in {"dict", "list", "numbered"}:
            branch.setdefault(keys[-1], {})
            if kind != "dict":
                counted.append((branch, keys[-1], kind))
        else:
            branch[keys[-1]] = _value(tensor, kind)
    for branch, key, kind in reversed(counted):
        items = {int(at): item for at, item in branch[key].items()}
        branch[key] = [items[at] for at in range(len(items))] if kind == "list" else items
    return root


def _value(tensor: Tensor, kind: str) -> Any:
    if kind in {"", "part"}:
        return tensor
    if kind == "none":
        return None
    if kind == "str":
        return bytes(tensor.tolist()).decode()
    return tensor.item()
