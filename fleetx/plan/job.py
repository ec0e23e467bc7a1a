"""What a strategy may look at: the job, never another strategy."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from fleetx.plan.step import Step

T = TypeVar("T")


@dataclass(kw_only=True)
class Job:
    """The devices, the model and the optimizer that a plan is folded over."""

    device: torch.device
    mesh: DeviceMesh
    model: nn.Module
    """The user's module; strategies may change how it runs, never the names of its parameters."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the whole job, by name; a strategy lists those it obeys in its contract."""

    contexts: list[Callable[[], AbstractContextManager[Any]]] = field(default_factory=list)
    """What every forward of the model runs under, its replay in the backward pass included."""

    step: Step | None = None
    """The finished step, for verbs that must see what strategies of later phases made of another;
    None while the plan is being folded."""

    criterion: Callable[[Any, Any], Tensor] | None = None
    optimizer: Optimizer | None = None

    def size(self, axis: str) -> int:
        """The number of ranks along a mesh axis."""
        return self.mesh[axis].size()

    def option(self, name: str, kind: type[T]) -> T:
        """One option of the whole job, of a known type."""
        value = self.options[name]
        assert isinstance(value, kind), f"{name} is {value!r}, not a {kind.__name__}"
        return value
