"""Tensors inside of structures: every one is changed, and every type stays."""

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from fleetx.comm.nested import mapped, tensors

Pair = namedtuple("Pair", "first second")


@dataclass
class Plain:
    logits: Tensor
    others: dict[str, Tensor] = field(default_factory=dict)
    note: str = "kept"


@dataclass(frozen=True, slots=True)
class Frozen:
    logits: Tensor


@dataclass
class Counting:
    logits: Tensor
    made = 0

    def __post_init__(self) -> None:
        Counting.made += 1


class Output(OrderedDict[str, Any]):
    """As libraries make them: a dict whose items are attributes."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


class Row(tuple[Any, ...]):
    pass


ONE = torch.ones(2)
NESTED: list[Any] = [
    ONE,
    (ONE, [ONE]),
    {"a": ONE, "b": None},
    OrderedDict(a=ONE),
    defaultdict(list, a=ONE),
    Pair(ONE, 3),
    Plain(ONE, {"x": ONE}),
    Frozen(ONE),
    Output(a=ONE, b=Plain(ONE)),
    UserDict(a=ONE),
    Row((ONE, 1)),
    [Plain(ONE), Output(a=(Frozen(ONE),))],
]


def found(values: Any) -> list[Tensor]:
    seen: list[Tensor] = []
    mapped(seen.append, values)
    return seen


@pytest.mark.parametrize("values", NESTED, ids=lambda values: type(values).__name__)
def test_every_tensor_is_changed_and_types_stay(values: Any) -> None:
    before = found(values)
    made = mapped(lambda tensor: tensor.double(), values)
    assert type(made) is type(values)
    after = found(made)
    assert len(after) == len(before) > 0
    assert all(tensor.dtype is torch.float64 for tensor in after)
    assert all(tensor.dtype is torch.float32 for tensor in found(values)), "the given ones stay"


def test_what_belongs_to_a_structure_stays() -> None:
    made = mapped(Tensor.double, Plain(ONE, note="mine"))
    assert made.note == "mine"
    assert mapped(Tensor.double, Output(a=ONE)).a.dtype is torch.float64
    assert mapped(Tensor.double, defaultdict(list, a=ONE))["new"] == []
    count = (made := Counting(ONE)).made
    mapped(Tensor.double, made)
    assert Counting.made == count, "no constructor runs again"
    proxy = MappingProxyType({"a": 1})
    assert mapped(Tensor.double, proxy) is proxy
    assert mapped(Tensor.double, Plain) is Plain


def test_packed_sequences_keep_their_sizes() -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    made = mapped(lambda t: t.half() if t.is_floating_point() else t, packed)
    assert isinstance(made, PackedSequence)
    assert made.data.dtype is torch.float16
    assert torch.equal(made.batch_sizes, packed.batch_sizes)


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def test_tensors_are_found_in_any_object() -> None:
    kept = [torch.full((), float(at)) for at in range(5)]
    values: dict[str, Any] = {
        "distribution": Normal(kept[0], kept[1], validate_args=False),
        "slots": Slotted([Plain(kept[2]), {kept[3]}]),
        "layer": nn.Linear(2, 2),
        "text": "none",
    }
    values["itself"] = values
    values["again"] = kept[4], kept[4]
    assert sorted(map(float, tensors(values))) == [0, 1, 2, 3, 4]
