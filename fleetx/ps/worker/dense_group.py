"""The parameters of one group of an optimizer, as flat arrays for their servers.

A message carries a server's share as a whole. A share that is too large for one is several tables,
which are no worse: the rules move each number by itself.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fleetx.ps.tables.dense_rules import OPTIMIZERS
from fleetx.ps.tables.dense_table import Block, DenseSpec, part_name
from fleetx.ps.tables.real_numbers import as_real
from fleetx.ps.tables.sparse_spec import Pace
from fleetx.ps.wire import frames
from fleetx.ps.wire.arrays import Array, Floats
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.parameter_split import ParameterSplit
from fleetx.ps.worker.table_handle import TableHandle

_OPTIONS = {
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"),
    "Adagrad": ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"),
    "Adam": (
        "lr",
        "betas",
        "eps",
        "weight_decay",
        "amsgrad",
        "maximize",
        "decoupled_weight_decay",
    ),
    "AdamW": ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"),
    "RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"),
}
"""What changes the mathematics; the other options of torch choose among implementations."""


def dense_groups(
    name: str, parameters: Mapping[str, Tensor], split: ParameterSplit, servers: int
) -> "list[DenseGroup]":
    """The parameters of a group of the optimizer, in one table or in as many as messages take."""
    shapes = {key: tuple(as_real(p.detach()).shape) for key, p in parameters.items()}
    most = frames.MAX_BODY // 5  # a number is 4 bytes, and no block has less than one
    pieces = [_pieces(held, most) for held in split.over(shapes, servers)]
    return [
        DenseGroup(part_name(name, number), parameters, list(blocks))
        for number, blocks in enumerate(zip_longest(*pieces, fillvalue=()))
    ]


def _pieces(held: Sequence[Block], most: int) -> list[tuple[Block, ...]]:
    """The blocks of a server, cut so that each piece has so many numbers at most."""
    pieces: list[list[Block]] = [[]]
    room = most
    for name, begin, end in held:
        at = begin
        if begin == end:
            pieces[-1].append((name, begin, end))
        while at < end:
            if not room:
                pieces.append([])
                room = most
            last = min(end, at + room)
            pieces[-1].append((name, at, last))
            at, room = last, room - (last - at)
    return [tuple(piece) for piece in pieces]


class DenseGradients(NamedTuple):
    """The gradients of a group, as each server is to get them."""

    values: list[Floats]
    """Zero where there is none."""
    present: list[Array] | None
    """Of each server's blocks, whether they have a gradient; None: all do."""


def mean(pushes: Sequence[DenseGradients]) -> DenseGradients:
    """Of several batches; one without a gradient counts as 0 if another has one."""
    share = np.float32(1 / len(pushes))
    values: Any = [
        np.sum(arrays, axis=0, dtype=np.float32) * share
        for arrays in zip(*(push.values for push in pushes), strict=True)
    ]
    marks = [push.present for push in pushes if push.present is not None]
    if len(marks) < len(pushes):
        return DenseGradients(values, None)
    return DenseGradients(values, [np.any(held, axis=0) for held in zip(*marks, strict=True)])


class DenseGroup:
    """Copies between parameters and the arrays that travel."""

    def __init__(
        self, name: str, parameters: Mapping[str, Tensor], blocks: list[tuple[Block, ...]]
    ) -> None:
        self.name, self._parameters, self.blocks = name, dict(parameters), blocks
        self._handle: TableHandle | None = None

    @property
    def table(self) -> TableHandle:
        """Where the parameters are, once it was made."""
        assert self._handle is not None, "made when the worker joins"
        return self._handle

    def create(self, client: Client, rule: str, options: Mapping[str, Any], pace: Pace) -> None:
        """Make the table on the servers."""
        assert rule in OPTIMIZERS, "checked when the plan was made"
        plain = {key: plain_option(options[key]) for key in _OPTIONS[rule] if key in options}
        specs = [
            DenseSpec(
                name=self.name, blocks=held, optimizer=rule, options=plain, pace=pace
            ).to_plain()
            for held in self.blocks
        ]
        self._handle = client.create("dense", specs, 0)

    def arrays(self) -> list[Floats]:
        """Room for each server's share."""
        return [np.zeros(_size(held), np.float32) for held in self.blocks]

    def values(self) -> list[Floats]:
        """Copies of the parameters."""
        return self._flattened({name: p.detach() for name, p in self._parameters.items()})

    def gradients(self) -> DenseGradients:
        """Copies of the gradients."""
        found = {name: p.grad for name, p in self._parameters.items()}
        lacking = {name for name, gradient in found.items() if gradient is None}
        marks = [np.array([name not in lacking for name, _, _ in held]) for held in self.blocks]
        return DenseGradients(self._flattened(found), marks if lacking else None)

    def _flattened(self, tensors: Mapping[str, Tensor | None]) -> list[Floats]:
        arrays = self.arrays()
        numbers = {name: None if t is None else _numbers(t) for name, t in tensors.items()}
        for array, held in zip(arrays, self.blocks, strict=True):
            at = 0
            for name, begin, end in held:
                given = numbers[name]
                if given is not None:
                    array[at : at + end - begin] = given[begin:end]
                at += end - begin
        return arrays

    @torch.no_grad()
    def put(self, arrays: Sequence[Floats], *, add: bool = False) -> None:
        """Set the parameters to what came from the servers, or move them by it."""
        # By torch, which counts that they changed: a backward through older ones must not pass.
        held = {name: as_real(p.detach()) for name, p in self._parameters.items()}
        targets = {name: p.reshape(-1) for name, p in held.items()}
        for array, blocks in zip(arrays, self.blocks, strict=True):
            flat, at = torch.from_numpy(array), 0
            for name, begin, end in blocks:
                source, target = flat[at : at + end - begin], targets[name][begin:end]
                if add:
                    target += source.to(target.device, target.dtype)
                else:
                    target.copy_(source)
                at += end - begin
        for name, parameter in held.items():
            if not parameter.is_contiguous():  # numbers in their order were a copy
                parameter.copy_(targets[name].view(parameter.shape))


def _numbers(tensor: Tensor) -> Floats:
    """All numbers of a tensor in a row; a view where that can be."""
    flat = as_real(tensor.detach()).reshape(-1)
    if not flat.is_cpu or flat.dtype != torch.float32:
        flat = flat.to("cpu", torch.float32)
    array: Floats = flat.numpy()
    return array


def _size(blocks: Sequence[Block]) -> int:
    return sum(end - begin for _, begin, end in blocks)


def plain_option(value: Any) -> Any:
    """An option of an optimizer as a message bears it; torch takes tensors for most of them."""
    if isinstance(value, Tensor):
        return value.item()
    return [*map(plain_option, value)] if isinstance(value, tuple) else value
