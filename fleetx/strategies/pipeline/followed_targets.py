"""What a criterion makes of targets alone, so that the same can be made of other targets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fleetx.torch_internals import tree_leaves, tree_map

_DRAWS = frozenset(
    {"bernoulli", "bernoulli_", "multinomial", "normal", "normal_", "poisson", "uniform_"}
    | {"rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm"}
    | {"dropout", "dropout_", "random_", "exponential_", "geometric_"}
)
"""Functions that give others at each call."""
_CHANGES = frozenset(
    {"__iadd__", "__iand__", "__idiv__", "__ifloordiv__", "__ilshift__", "__imod__", "__imul__"}
    | {"__ior__", "__ipow__", "__irshift__", "__isub__", "__itruediv__", "__ixor__"}
    | {"__setitem__"}
)
"""Methods that change their tensor, beside those whose names end in one underscore."""


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor in the arguments of a call."""

    number: int


@dataclass(frozen=True)
class _Call:
    func: Callable[..., Any]
    given: Any
    """Its arguments, with places for what was made of targets."""
    makes: int
    """How many tensors it returned."""


class FollowedTargets:
    """Remembers calls of torch that took nothing but targets, and what was made of such.

    Args:
        targets: those of one micro-batch.
    """

    def __init__(self, targets: Any) -> None:
        self._places: dict[int, int] = {}
        """By the identity of a tensor, which is kept, so that no other has it."""
        self._kept: list[Tensor] = []
        self._calls: list[_Call] = []
        self._keep(tensors_in(targets))

    def _keep(self, made: Sequence[Tensor]) -> None:
        for tensor in made:
            self._places[id(tensor)] = len(self._kept)
            self._kept.append(tensor)

    def knows(self, tensor: Tensor) -> bool:
        """Whether it was made of targets alone."""
        return id(tensor) in self._places

    def follow(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        """Remember a call that was made, if it took nothing but targets."""
        given, made = tensors_in((args, kwargs)), tensors_in(result)
        name = getattr(func, "__name__", "")
        if name in _DRAWS or not all(map(self.knows, given)):
            if given and _changes(name):
                self._places.pop(id(given[0]), None)
        elif made or _changes(name):
            places = tree_map(self._place, (tuple(args), dict(kwargs)))
            self._calls.append(_Call(func, places, len(made)))
            self._keep(made)

    def _place(self, value: Any) -> Any:
        return _Place(self._places[id(value)]) if isinstance(value, Tensor) else value

    def made_of(self, others: Any, wanted: Sequence[Tensor]) -> list[Tensor]:
        """What stands for the wanted tensors, when the same is made of other targets.

        Raises:
            LookupError: something was not made of targets alone, or does not come out there.
        """
        values = [leaf.clone() for leaf in tensors_in(others)]  # calls may change them in place

        def at(value: Any) -> Any:
            return values[value.number] if isinstance(value, _Place) else value

        for call in self._calls:
            args, kwargs = tree_map(at, call.given)
            made = tensors_in(call.func(*args, **kwargs))
            if len(made) != call.makes:
                raise LookupError("the same call returned another number of tensors")
            values += made
        return [values[self._places[id(tensor)]] for tensor in wanted]


def tensors_in(values: Any) -> list[Tensor]:
    """Every tensor in nested lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _changes(name: str) -> bool:
    """Whether a function of this name changes its first tensor."""
    return name in _CHANGES or (name.endswith("_") and not name.endswith("__"))
