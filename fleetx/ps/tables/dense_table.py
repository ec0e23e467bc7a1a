"""A dense table: parts of parameters in one flat array, moved as a torch optimizer moves them.

A parameter without a gradient stays as it is, and so does its state, as in torch. Until one is met,
all numbers have made the same updates; from then on each has a count of its own.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any

import numpy as np

from fleetx.ps.tables import kernels
from fleetx.ps.tables.dense_rules import OPTIMIZERS, State, dense_rule
from fleetx.ps.tables.sparse_spec import Pace, check_name
from fleetx.ps.wire.arrays import Array, Floats
from fleetx.ps.wire.plain_data import from_plain, to_plain

Block = tuple[str, int, int]
"""The numbers from one place to another of a flattened parameter."""
COUNTS = "counts"
"""The array of the updates that each number has made, where they differ."""
STEP = "state.step"
"""The number of updates that all have made, in the state of rules that need it."""


def part_name(group: str, number: int) -> str:
    """What the tables of a group of parameters are called."""
    return f"{group}.{number}" if number else group


def group_of(table: str) -> str:
    """The group whose parameters a table holds, or some of them."""
    group, _, number = table.rpartition(".")
    return group if number.isdigit() else table


@dataclass(frozen=True, kw_only=True)
class DenseSpec:
    """Everything that decides what one server's share of a dense table is."""

    name: str
    blocks: tuple[Block, ...]
    optimizer: str = "SGD"
    options: Mapping[str, Any]
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"servers have no {self.optimizer}; use {', '.join(sorted(OPTIMIZERS))}"
            )

    @cached_property
    def size(self) -> int:
        """Numbers in the table."""
        return sum(end - begin for _, begin, end in self.blocks)

    def to_plain(self) -> dict[str, Any]:
        """The spec as plain data."""
        return {
            "name": self.name,
            "blocks": [list(block) for block in self.blocks],
            "optimizer": self.optimizer,
            "options": dict(self.options),
            "pace": to_plain(self.pace),
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> "DenseSpec":
        """The spec that ``to_plain`` described."""
        return DenseSpec(
            name=plain["name"],
            blocks=tuple((str(name), int(begin), int(end)) for name, begin, end in plain["blocks"]),
            optimizer=plain["optimizer"],
            options=dict(plain["options"]),
            pace=from_plain(plain["pace"], {"Pace": Pace}),
        )


class DenseTable:
    """Values and the optimizer's state. ``lock`` guards every call."""

    def __init__(self, spec: DenseSpec) -> None:
        self.spec, self.lock = spec, threading.RLock()
        self.updates = 0
        """Updates so far; the version of the table."""
        self.filled = False
        """Whether somebody has given the values with which training begins."""
        self.values: Floats = np.zeros(spec.size, np.float32)
        """The numbers themselves, not a copy."""
        self._rule = dense_rule(spec.optimizer, spec.options)
        self._rate = float(spec.options["lr"])
        self._state: State = self._rule.first_state(self.values)
        self._counts: Floats | None = None
        """Updates that each number has made, where they differ."""
        ends = [*accumulate((end - begin for _, begin, end in spec.blocks), initial=0)]
        self._places = [slice(*place) for place in pairwise(ends)]
        """Where blocks lie in the array."""

    def fill(self, values: Floats) -> None:
        """Begin with these values, unless others came first."""
        if not self.filled:
            self.values[:] = values
            self.filled = True

    def push(
        self, gradients: Floats, rate: float | None = None, present: Array | None = None
    ) -> None:
        """One update by the optimizer; ``present`` says which blocks have a gradient."""
        base = self._rate if rate is None else rate
        if not gradients.flags.carray:  # loops are compiled for arrays like those of a frame
            gradients = np.array(gradients, np.float32)
        rate = self.spec.pace.rate(base, self.updates)
        if present is None and self._counts is None:
            self._rule.move(kernels.active, self.values, gradients, self._state, rate)
        else:
            self._move_parts(gradients, rate, present)
        self.updates += 1

    def _move_parts(self, gradients: Floats, rate: float, present: Array | None) -> None:
        """Move the blocks that have a gradient, neighbours of the same age in one pass."""
        if self._counts is None:
            self._counts = with_counts(self._views())[COUNTS]
            self._state.pop("step", None)
        held = [at for at, place in enumerate(self._places) if place.start < place.stop]
        ages = {at: float(self._counts[self._places[at].start]) for at in held}
        marks = {at: present is None or bool(present[at]) for at in held}
        for (age, moves), run in groupby(held, lambda at: (ages[at], marks[at])):
            if moves:
                places = [self._places[at] for at in run]
                part = slice(places[0].start, places[-1].stop)
                self._move_part(part, age, gradients[part], rate)
                self._counts[part] = age + 1

    def _move_part(self, part: slice, age: float, gradients: Floats, rate: float) -> None:
        """One update of some numbers by their part of the state, which their first one begins."""
        values = self.values[part]
        state = self._rule.first_state(values)
        if age:
            state = {name: array[part] for name, array in self._state.items()}
            state["step"] = np.array(age, np.float32)
        self._rule.move(kernels.active, values, gradients, state, rate)
        state.pop("step", None)
        for name, array in state.items():
            self._state.setdefault(name, np.zeros_like(self.values))[part] = array

    def add(self, delta: Floats) -> None:
        """``w += delta``, for workers that train copies of their own."""
        self.values[:] += delta
        self.updates += 1

    def arrays(self, buffers: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Copies of everything: values, and each tensor of the optimizer's state.

        Args:
            buffers: arrays that earlier copies lie in, to be written over where they fit.
        """
        buffers, copies = buffers or {}, {}
        for name, array in self._views().items():
            target = buffers.get(name)
            if target is None or target.shape != array.shape:
                target = np.empty_like(array)
            np.copyto(target, array)
            copies[name] = target
        return copies

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what ``arrays`` gives."""
        return {name: array.shape for name, array in self._views().items()}

    def _views(self) -> dict[str, Array]:
        counts = {} if self._counts is None else {COUNTS: self._counts}
        state = {f"state.{name}": array for name, array in self._state.items()}
        return {"values": self.values} | state | counts

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Take what ``arrays`` gave; state that it does not have begins anew."""
        self.values[:] = arrays["values"]
        self.filled = True
        self._state, self._counts = self._rule.first_state(self.values), None
        for name, array in arrays.items():
            if name.startswith("state."):
                self._state[name.removeprefix("state.")] = np.array(array, np.float32)
        if COUNTS in arrays:
            self._counts = np.array(arrays[COUNTS], np.float32)
            self._state.pop("step", None)

    def describe(self) -> dict[str, Any]:
        """What a person may want to know."""
        return {"numbers": self.spec.size, "updates": self.updates}


def with_counts(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of a table in which all numbers may have made the same updates, with counts."""
    if COUNTS in arrays:
        return dict(arrays)
    begun = any(name.startswith("state.") for name in arrays)
    age = float(arrays[STEP]) if STEP in arrays else float(begun)
    rest = {name: array for name, array in arrays.items() if name != STEP}
    return rest | {COUNTS: np.full(len(arrays["values"]), age, np.float32)}
