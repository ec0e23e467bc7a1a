"""First values of layers, as a start-up program keeps them."""

import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fleetx.record.error import ProgramError
from fleetx.record.objective import Objective
from fleetx.record.state import State


@dataclass
class Initial:
    """How the parameters of one layer get their first values."""

    module: nn.Module
    reset: Callable[[Any], None] | None
    """Draws values of such a module; None for one that the user made, which has its own already."""
    done: bool = False
    again: bool = False
    """Whether the start-up program ran before, so that the module may have been trained."""
    loaded: set[int] = field(default_factory=set)
    """Those of its tensors that got values from files before it started."""
    state: State | None = None
    """Of a program that has the module: the one that trains it in parts, if there is one."""
    trainings: list[weakref.ref[Objective]] = field(default_factory=list)
    """Those that move the module's parameters."""
    home: object = None
    """Whoever keeps it by name, where several may keep values of one program."""

    def draw(self) -> None:
        """Give the module its first values."""
        if self.reset is not None:
            self.reset(self.module)

    def elsewhere(self, home: object) -> "Initial":
        """The same layer without values yet, for another home."""
        module = copy.deepcopy(self.module)
        for own, other in zip(self.module.parameters(), module.parameters(), strict=True):
            vars(other).update(vars(own))  # what the script said of it, such as its own rate
        return Initial(module, self.reset, done=self.reset is None, home=home)


def check_initialised(layers: dict[str, Initial]) -> None:
    """Refuse to run layers whose parameters have no values yet."""
    missing = [name for name, initial in layers.items() if not initial.done]
    if missing:
        raise ProgramError(
            f"the parameters of {', '.join(missing[:3])} have no values yet; run the start-up "
            "program first: exe.run(static.default_startup_program())."
        )
