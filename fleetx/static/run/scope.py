"""``global_scope``: the values of parameters and buffers by name."""

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleetx.plan.option import unknown
from fleetx.record.error import ProgramError
from fleetx.record.state import State
from fleetx.static.record.program import Program
from fleetx.static.run.arrays import as_array


class Value:
    """One parameter or buffer; where workers share it, all of them read and write it together."""

    def __init__(self, state: State, name: str) -> None:
        self._state, self._name = state, name

    def _tensor(self) -> Tensor:
        self._state.gather("static.global_scope().find_var")
        return self._state.persistent()[self._name]

    def get_tensor(self) -> "Value":
        """Itself, for scripts that ask twice."""
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy of the numbers."""
        return np.array(as_array(self._tensor()), dtype=dtype)

    def shape(self) -> list[int]:
        """Its sizes."""
        return list(self._state.persistent()[self._name].shape)

    def set(self, value: Any, place: Any = None) -> None:
        """Overwrite the numbers."""
        given = torch.as_tensor(np.asarray(value))
        if list(given.shape) != self.shape():
            raise ProgramError(
                f"a value of shape {list(given.shape)} cannot become one of shape "
                f"{self.shape()}; bring it to that shape."
            )
        with torch.no_grad():
            self._tensor().copy_(given)
        self._state.deal()


class Scope:
    """Looks through the programs that were run."""

    def __init__(self) -> None:
        self._programs: list[weakref.ref[Program]] = []
        """The one that ran last is at the end."""

    def know(self, program: Program) -> None:
        """Note that a program runs."""
        if self._programs and self._programs[-1]() is program:
            return
        others = [known for known in self._programs if known() not in {None, program}]
        self._programs = [*others, weakref.ref(program)]

    def find_var(self, name: str) -> Value:
        """The value of a parameter or buffer; of several programs, in the one that ran last."""
        names: list[str] = []
        for state in self._states():
            known = state.persistent()
            if name in known:
                return Value(state, name)
            names += known
        raise ProgramError(unknown(f"no program that ran has a value {name!r}", name, names))

    def _states(self) -> Iterator[State]:
        """Those of the programs, and of what start-up programs gave first values."""
        for reference in reversed(self._programs):
            program = reference()
            if program is not None:
                yield program.state
                started = {initial.state: None for initial in program.initial.values()}
                yield from (state for state in started if state is not None)


_scope = Scope()


def global_scope() -> Scope:
    """The one scope of this process."""
    return _scope
