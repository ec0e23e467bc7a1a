"""Batches of text slots as feeds of a program: rectangles, or flat values and where records begin.

A slot goes to the input of its name. Records that differ in length make no rectangle: they are fed
flat, to an input of one dimension, beside a second input ``<name>_offsets``.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, fx

from fleetx.record.error import ProgramError
from fleetx.record.shapes import FREE
from fleetx.static.record.program import Program

OFFSETS = "_offsets"


class Slotted(Protocol):
    """The values of one slot in a batch, and where each record's begin."""

    @property
    def values(self) -> Tensor:
        """All of them, one record behind the other."""

    @property
    def offsets(self) -> Tensor:
        """Where each record begins."""

    def dense(self) -> Tensor:
        """One row for each record; ``ValueError`` where they differ in length."""


def feed_of(program: Program, batch: Mapping[str, Slotted]) -> dict[str, Any]:
    """What the program takes of a batch; slots that it has no input for are left out."""
    inputs = program.inputs()
    found: dict[str, Any] = {}
    for name, slot in batch.items():
        if name not in inputs:
            continue
        if f"{name}{OFFSETS}" in inputs:
            found |= {name: slot.values, f"{name}{OFFSETS}": slot.offsets}
        else:
            found[name] = _rectangle(name, slot, inputs[name])
    if not found:
        raise ProgramError(
            f"none of the slots {', '.join(batch)} is an input of the program, which takes "
            f"{', '.join(inputs)}; give slots the names of the inputs, as use_var=[...] of the "
            "data set does."
        )
    return found


def _rectangle(name: str, slot: Slotted, node: fx.Node) -> Tensor:
    try:
        rows = slot.dense()
    except ValueError:
        raise ProgramError(
            f"records of slot {name!r} differ in length, so they do not fit static.data({name!r}, "
            f"{list(node.meta['shape'])}); declare static.data({name!r}, [None], ...) and "
            f"static.data('{name}{OFFSETS}', [None], 'int64'), and look rows up with a "
            "fleetx.nn.SparseEmbedding that has a pooling."
        ) from None
    sizes = node.meta["shape"][1:]
    if any(size in FREE for size in sizes) or rows[:1].numel() != math.prod(sizes):
        return rows  # the check of feeds says what is wrong, if anything is
    return rows.reshape(len(rows), *sizes)
