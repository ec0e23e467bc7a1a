"""Momentum for gradients of which a part waits before it is sent."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from fleetx.comm.local import local


class Rule(NamedTuple):
    """A parameter, and what happens to its gradient besides the learning rate."""

    name: str
    parameter: Parameter
    momentum: float
    nesterov: bool
    decay: float


class Kept(NamedTuple):
    """What is kept of a parameter, laid out like it."""

    velocity: Tensor
    waiting: Tensor
    """What was not sent yet."""


class Ledger:
    """Velocities and waiting sums: new ones become valid with the update, not before it."""

    def __init__(self) -> None:
        self.updates = 0
        self._kept: dict[str, Kept] = {}
        self._pending: dict[str, Kept] = {}

    def recall(self, rule: Rule) -> Kept:
        """What is valid now."""
        if rule.name not in self._kept:
            like = local(rule.parameter.detach())
            self._kept[rule.name] = Kept(torch.zeros_like(like), torch.zeros_like(like))
        return self._kept[rule.name]

    def enter(self, rule: Rule, velocity: Tensor, waiting: Tensor) -> None:
        """What the coming update will make valid."""
        if rule.name in self._pending:
            raise RuntimeError(
                "gradients were exchanged twice before one update, and momentum would count the "
                "first ones again; call optimizer.step() after every exchanged backward, add up "
                "losses before it, or use gradient_merge for several batches per update."
            )
        self._pending[rule.name] = Kept(velocity, waiting)

    def close(self, rules: Iterable[Rule], moved: bool) -> None:
        """The update was made, or skipped as if its batch had not been."""
        if moved:
            # The gradient of a parameter that no rank used never came: nothing was applied.
            used = {rule.name for rule in rules if rule.parameter.grad is not None}
            self._kept |= {name: new for name, new in self._pending.items() if name in used}
            self.updates += 1
        self._pending = {}

    def state_dict(self) -> dict[str, Any]:
        """The count of updates, velocities ``u`` and waiting sums ``v``."""
        return {
            "step": self.updates,
            "u": {name: kept.velocity for name, kept in self._kept.items()},
            "v": {name: kept.waiting for name, kept in self._kept.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], rules: Iterable[Rule]) -> None:
        """Take back what ``state_dict`` returned."""
        known = {rule.name: local(rule.parameter.detach()) for rule in rules}
        if unknown := sorted(state["u"].keys() - known.keys()):
            raise ValueError(
                f"the saved state holds momentum of {unknown[:3]}, which this job does not "
                "compress; load it into the same model, on as many workers as saved it."
            )
        self.updates, self._pending = state["step"], {}
        self._kept = {
            name: Kept(*(torch.empty_like(known[name]).copy_(state[key][name]) for key in "uv"))
            for name in state["u"]
        }


def local_gradient(
    gradient: Tensor,
    parameter: Tensor,
    *,
    factor: Tensor | None = None,
    limit: float = 0.0,
    workers: int = 1,
    decay: float,
) -> Tensor:
    """What one worker adds: its gradient without the factor of the loss, limited, with decay.

    ``limit`` is meant for the mean over the workers; 0 is none. If their gradients are independent,
    the mean stays within it when each worker's part of the mean stays within
    ``limit / sqrt(workers)``.
    """
    if factor is not None:
        gradient = gradient / factor
    if limit:
        norm = torch.linalg.vector_norm(gradient) / workers
        gradient = gradient * (limit / math.sqrt(workers) / norm).clamp(max=1)
    return gradient.add(parameter, alpha=decay) if decay else gradient


def moved_by(rule: Rule, old: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Plain momentum: the new velocity, and what the parameter moves by."""
    # Laid out like the old one, whatever the layout of the gradient.
    new = torch.add(gradient, old, alpha=rule.momentum, out=torch.empty_like(old))
    return new, torch.add(gradient, new, alpha=rule.momentum) if rule.nesterov else new


def correct(rule: Rule, old: Kept, gradient: Tensor, *, velocity: Tensor, waiting: Tensor) -> None:
    """Momentum before sending: write the new velocity, and the sum that waits to be sent."""
    if rule.nesterov:
        torch.add(old.velocity, gradient, out=velocity).mul_(rule.momentum)
        torch.add(old.waiting, velocity, out=waiting).add_(gradient)
    else:
        torch.add(gradient, old.velocity, alpha=rule.momentum, out=velocity)
        torch.add(old.waiting, velocity, out=waiting)
