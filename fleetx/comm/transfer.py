"""Move the tensors of a batch to a device, whatever they are packed in."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: torch.device | str) -> Any:
    """`batch` with its tensors on `device`; the same object where they already are.

    Copies to a GPU do not block, so from pinned memory they overlap with its work. Those from it
    do: whoever reads the numbers on the host would else read them before they have come.
    """
    ahead = torch.device(device).type != "cpu"
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=ahead)
    if isinstance(batch, str | bytes | int | float | None):
        return batch
    if callable(move := getattr(batch, "to", None)):  # packed sequences and batches of libraries
        return move(device, non_blocking=ahead)
    return _rebuild(batch, device)


def _rebuild(batch: Any, device: torch.device | str) -> Any:
    if isinstance(batch, Mapping):
        return _rebuild_mapping(batch, device)
    if isinstance(batch, list | tuple):
        return _rebuild_sequence(batch, device)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        old = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        new = {name: to_device(value, device) for name, value in old.items()}
        return batch if _same(old.values(), new.values()) else dataclasses.replace(batch, **new)
    return batch


def _rebuild_mapping(batch: Mapping[Any, Any], device: torch.device | str) -> Any:
    new = {key: to_device(value, device) for key, value in batch.items()}
    if _same(batch.values(), new.values()):
        return batch
    return new if type(batch) is dict else type(batch)(new)  # type: ignore[call-arg]


def _rebuild_sequence(batch: list[Any] | tuple[Any, ...], device: torch.device | str) -> Any:
    new = [to_device(value, device) for value in batch]
    if _same(batch, new):
        return batch
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*new)
    return type(batch)(new)


def _same(old: Any, new: Any) -> bool:
    return all(one is other for one, other in zip(old, new, strict=True))
