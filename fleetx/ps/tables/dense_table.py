"""A dense table: parts of parameters in one flat array, moved by a torch optimizer."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from fleetx.ps.tables.sparse_spec import Pace, check_name
from fleetx.ps.wire.arrays import Array, Floats
from fleetx.ps.wire.plain_data import from_plain, to_plain

OPTIMIZERS: dict[str, type[Optimizer]] = {
    cls.__name__: cls for cls in (SGD, Adagrad, Adam, AdamW, RMSprop)
}
"""Those that move each number by itself, so that it does not matter how parameters are cut."""

Block = tuple[str, int, int]
"""The numbers from one place to another of a flattened parameter."""


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

    @property
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
        self._values = torch.nn.Parameter(torch.zeros(spec.size))
        self._optimizer = self._fresh()

    def _fresh(self) -> Optimizer:
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in self.spec.options.items()}
        make: Any = OPTIMIZERS[self.spec.optimizer]
        made: Optimizer = make([self._values], **options)
        return made

    @property
    def values(self) -> Floats:
        """The numbers themselves, not a copy."""
        array: Floats = self._values.detach().numpy()
        return array

    def fill(self, values: Floats) -> None:
        """Begin with these values, unless others came first."""
        if not self.filled:
            self.values[:] = values
            self.filled = True

    def push(self, gradients: Floats, rate: float | None = None) -> None:
        """One update by the optimizer."""
        group = self._optimizer.param_groups[0]
        base = float(self.spec.options["lr"]) if rate is None else rate
        group["lr"] = self.spec.pace.rate(base, self.updates)
        # The bytes of the wire are not ours to keep, and must not be written to.
        self._values.grad = torch.from_numpy(np.array(gradients, np.float32))
        self._optimizer.step()
        self._values.grad = None
        self.updates += 1

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
        state = self._optimizer.state.get(self._values, {})
        kept = {f"state.{name}": value for name, value in state.items() if value is not None}
        tensors = {name: torch.as_tensor(value) for name, value in kept.items()}
        return {"values": self.values} | {n: t.float().numpy() for n, t in tensors.items()}

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Take what ``arrays`` gave; state that it does not have begins anew."""
        self.values[:] = arrays["values"]
        self.filled = True
        self._optimizer = self._fresh()
        for name, array in arrays.items():
            if name.startswith("state."):
                tensor = torch.from_numpy(np.array(array, np.float32))
                self._optimizer.state[self._values][name.removeprefix("state.")] = tensor

    def describe(self) -> dict[str, Any]:
        """What a person may want to know."""
        return {"numbers": self.spec.size, "updates": self.updates}
