"""Tensors that are moved together, and how a rule takes their gradients and rates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from fleetx.torch_internals import foreach_add, foreach_neg

SMALL = 1 << 14
"""On the CPU, below this size a tensor's share of list operations costs less than a fused kernel of
its own, which starts all threads."""

HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Tensors of one group that are moved together, position by position."""

    positions: list[int] = field(default_factory=list)
    """Where in the group."""

    params: list[Tensor] = field(default_factory=list)
    grads: list[Any] = field(default_factory=list)
    """Filled for the time of a step."""
    states: list[dict[str, Tensor]] = field(default_factory=list)
    excluded: list[bool] = field(default_factory=list)

    def state(self, name: str) -> list[Tensor]:
        """One kind of state of all parameters."""
        return [state[name] for state in self.states]

    def written(self) -> list[Tensor]:
        """This rank's part of everything that an update writes."""
        return local([*self.params, *(value for state in self.states for value in state.values())])

    def only(self, excluded: bool) -> "Layers":
        """Those that are excluded from decay and layer-wise rates, or those that are not."""
        return self.at([at for at, flag in enumerate(self.excluded) if flag == excluded])

    def shared_out(self, decay: float) -> tuple["Layers", "Layers", "Layers"]:
        """Those that are not adapted, and of the others the small and the large ones."""
        adapted = [decay > 0 and not flag for flag in self.excluded]
        small = [param.numel() < SMALL for param in self.params]
        places = range(len(adapted))
        return (
            self.at([at for at in places if not adapted[at]]),
            self.at([at for at in places if adapted[at] and small[at]]),
            self.at([at for at in places if adapted[at] and not small[at]]),
        )

    def at(self, positions: Sequence[int]) -> "Layers":
        """Those at some positions."""
        return Layers(
            positions=[self.positions[at] for at in positions],
            params=[self.params[at] for at in positions],
            grads=[self.grads[at] for at in positions],
            states=[self.states[at] for at in positions],
            excluded=[self.excluded[at] for at in positions],
        )


def wide(dtype: torch.dtype) -> torch.dtype:
    """The number format in which a rule computes with parameters of another."""
    return torch.float32 if dtype in HALVES else dtype


def widened(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Half precision as single precision; the others unchanged."""
    return [t.to(wide(t.dtype)) for t in tensors]


def local(tensors: Sequence[Tensor]) -> list[Tensor]:
    """This rank's part of distributed tensors, sharing their memory; the others unchanged."""
    return [t.to_local() if isinstance(t, DTensor) else t for t in tensors]


def descended(
    grads: Sequence[Tensor], params: Sequence[Tensor], *, weight_decay: float, maximize: bool
) -> list[Tensor]:
    """The gradients of what is minimised, decay of the user's optimizer included."""
    found = widened(grads)
    if maximize:
        found = list(foreach_neg(found))
    if weight_decay:
        found = list(foreach_add(found, list(params), alpha=weight_decay))
    return found


def rate(lr: float | Tensor) -> float | Tensor:
    """The learning rate without a copy between devices: a tensor only where it is on a GPU."""
    return lr if isinstance(lr, Tensor) and not lr.is_cpu else float(lr)
