"""Momentum for gradients of which a part waits before it is sent."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from fleetx.comm.local import local
from fleetx.plan.recorded import Recorded


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

    def __init__(self, device: torch.device) -> None:
        self.updates = 0
        """Those that the host knows of."""
        self._replayed = torch.zeros((), dtype=torch.int64, device=device)
        """Those of replays, in which the device alone decides what counts."""
        self._kept: dict[str, Kept] = {}
        self._pending: dict[str, Kept] = {}
        self._in_place = False
        """Whether recorded steps look for what is kept where it lay when they were recorded."""

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

    def close(self, rules: Iterable[Rule], moved: bool, recorded: Recorded | None = None) -> None:
        """The update was made, or skipped as if its batch had not been.

        Args:
            rules: Those of all compressed parameters.
            moved: Whether it was made, as far as the host knows.
            recorded: The step, if it is recorded and the host will not see what becomes of it.
        """
        self._in_place |= recorded is not None
        if moved:
            # The gradient of a parameter that no rank used never came: nothing was applied.
            used = {rule.name for rule in rules if rule.parameter.grad is not None}
            new = {name: new for name, new in self._pending.items() if name in used}
            if self._in_place:
                self._overwrite(new, None if recorded is None else recorded.undone)
            else:
                self._kept |= new
            self._count(recorded)
        self._pending = {}

    def _overwrite(self, new: Mapping[str, Kept], undone: Tensor | None) -> None:
        """Write what becomes valid over what was, except where the flag is set."""
        skipped = None if undone is None else undone.reshape(()) != 0
        for name, values in new.items():
            for place, value in zip(self._kept[name], values, strict=True):
                if skipped is None:
                    place.copy_(value)
                else:
                    # A choice and no product: what is left out may be infinite or not a number.
                    torch.where(skipped, place, value, out=place)

    def _count(self, recorded: Recorded | None) -> None:
        if recorded is None:
            self.updates += 1
        else:
            undone = recorded.undone
            self._replayed.add_(1 if undone is None else undone.reshape(()) == 0)

    def state_dict(self) -> dict[str, Any]:
        """The count of updates, velocities ``u`` and waiting sums ``v``."""
        # Of what is written over by later updates, a copy: who saves may take his time.
        kept = {name: self._saved(kept) for name, kept in self._kept.items()}
        return {
            "step": self.updates + (int(self._replayed) if self._in_place else 0),
            "u": {name: found.velocity for name, found in kept.items()},
            "v": {name: found.waiting for name, found in kept.items()},
        }

    def _saved(self, kept: Kept) -> Kept:
        return Kept(*(part.clone() for part in kept)) if self._in_place else kept

    def load_state_dict(self, state: Mapping[str, Any], rules: Iterable[Rule]) -> None:
        """Take back what ``state_dict`` returned."""
        known = {rule.name: local(rule.parameter.detach()) for rule in rules}
        if unknown := sorted(state["u"].keys() - known.keys()):
            raise ValueError(
                f"the saved state holds momentum of {unknown[:3]}, which this job does not "
                "compress; load it into the same model, on as many workers as saved it."
            )
        self.updates, self._pending = state["step"], {}
        self._replayed.zero_()
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
