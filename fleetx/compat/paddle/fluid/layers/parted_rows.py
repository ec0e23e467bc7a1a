"""``IfElse``: rows for which a condition holds go one way, the others another."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fleetx.compat import lods
from fleetx.compat.recorded import fake, operator, settle
from fleetx.record.variable import Variable


class IfElse:
    """Parts rows by a condition of one number each, and puts what becomes of them in order again.

    Both blocks are computed in every run, each for its own rows.
    """

    def __init__(self, cond: Any, name: str | None = None) -> None:
        settle(cond)
        if not isinstance(cond, Tensor) or cond.dtype != torch.bool:
            raise TypeError(f"layers.IfElse(cond) takes a variable of bool, got {cond!r}")
        self.cond: Any = cond
        self._places = {way: _places_where(cond, way) for way in (True, False)}
        self._given: dict[bool, list[Any]] = {True: [], False: []}
        self._way: bool | None = None

    @contextmanager
    def _block(self, way: bool) -> Iterator[None]:
        if self._way is not None:
            raise ValueError("blocks of layers.IfElse do not lie in each other; end the first one.")
        self._way = way
        try:
            yield
        finally:
            self._way = None

    def true_block(self) -> Any:
        """What is done with the rows for which the condition holds."""
        return self._block(True)

    def false_block(self) -> Any:
        """What is done with the others."""
        return self._block(False)

    def _inside(self, call: str) -> bool:
        if self._way is None:
            raise ValueError(
                f"IfElse.{call}() was called outside of its blocks; call it in 'with "
                "ie.true_block():' or 'with ie.false_block():'."
            )
        return self._way

    def input(self, x: Any) -> Any:
        """The rows of a variable that this block has."""
        way = self._inside("input")
        if lods.has_lod(x):
            raise ValueError(
                "IfElse.input() got a variable whose records have several rows (lod_level=1), and "
                "rows are parted here, not records; pool or pad the records before."
            )
        return torch.index_select(x, 0, self._places[way])

    def output(self, *outs: Any) -> None:
        """What this block gives: as many variables, in the same order, as the other one."""
        way = self._inside("output")
        if self._given[way]:
            raise ValueError("IfElse.output() was called twice in one block; pass all at once.")
        self._given[way] = list(outs)

    def __call__(self) -> list[Any]:
        """The rows of both blocks in their old order; of the one block that gave something."""
        if self._way is not None:
            raise ValueError("layers.IfElse is called behind its blocks, not in one.")
        those, others = self._given[True], self._given[False]
        if not those or not others:
            if not those and not others:
                raise ValueError("layers.IfElse has no output; call ie.output(x) in its blocks.")
            return those or others
        if len(those) != len(others):
            raise ValueError(
                f"the blocks of layers.IfElse give {len(those)} and {len(others)} variables; give "
                "the same ones in both."
            )
        return [self._merged(one, other) for one, other in zip(those, others, strict=True)]

    def _merged(self, one: Any, other: Any) -> Any:
        given = one, other, self._places[True], self._places[False]
        if not isinstance(one, Variable):
            return _in_order(*given)
        sizes = [self.cond.fake.shape[0], *list(one.fake.shape)[1:]]
        return operator(_in_order, *given, like=fake(sizes, one.dtype, like=(one, other)))


def _places_where(cond: Any, way: bool) -> Any:
    if not isinstance(cond, Variable):
        return _found(cond, way)
    return operator(_found, cond, way, like=fake([None], torch.int64), by_numbers=True)


def _found(cond: Tensor, way: bool) -> Tensor:
    return torch.nonzero(cond.reshape(-1) == way).reshape(-1)


def _in_order(one: Tensor, other: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Rows of two kinds at the places from which they came."""
    return torch.cat([one, other])[torch.argsort(torch.cat([first, second]))]
