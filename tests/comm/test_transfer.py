"""Batches move as a whole, and stay the same objects where nothing moves."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from fleetx.comm.transfer import to_device


class Pair(NamedTuple):
    one: torch.Tensor
    two: str


@dataclass
class Record:
    tensor: torch.Tensor
    name: str


CASES: list[Any] = [
    torch.ones(2),
    [torch.ones(2), 3],
    (torch.ones(2), "text", None),
    {"x": torch.ones(2), "deep": [{"y": torch.ones(1)}]},
    Pair(torch.ones(2), "two"),
    Record(torch.ones(2), "name"),
    pack_sequence([torch.ones(2), torch.ones(1)]),
    "text",
    object(),
]


@pytest.mark.parametrize("batch", CASES, ids=lambda case: type(case).__name__)
def test_nothing_is_copied_on_the_same_device(batch: Any) -> None:
    assert to_device(batch, torch.device("cpu")) is batch


@pytest.mark.parametrize("batch", CASES[:6], ids=lambda case: type(case).__name__)
def test_containers_keep_their_type_when_tensors_move(batch: Any) -> None:
    moved = to_device(batch, torch.device("meta"))
    assert type(moved) is type(batch)
    assert _devices(moved) == {"meta"}


def _devices(value: Any) -> set[str]:
    if isinstance(value, torch.Tensor):
        return {value.device.type}
    if isinstance(value, Record):
        return _devices(value.tensor)
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(parts, str | int | None):
        return set()
    return set().union(*map(_devices, parts))
