"""Regularizers in the words of torch's optimizers, and the steps that torch's do not know."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fleetx.compat.paddle.regularizer import Decay, L1Decay, L2Decay


def decay_of(given: Any) -> Decay | None:
    """A regularizer; a number is an L2 one."""
    if given is None or isinstance(given, Decay):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool):
        return L2Decay(float(given))
    if isinstance(given, Tensor):
        return L2Decay(float(given))
    raise TypeError(
        f"a regularizer is a number, or L1Decay or L2Decay of paddle.regularizer, got {given!r}"
    )


@dataclass(frozen=True)
class Decays:
    """What is added to the gradient of a parameter."""

    l1: float = 0.0
    l2: float = 0.0

    @classmethod
    def of(cls, decay: Decay | None) -> "Decays":
        """Of a regularizer."""
        if decay is None:
            return cls()
        return cls(l1=decay.coeff) if isinstance(decay, L1Decay) else cls(l2=decay.coeff)

    def options(self, weight_decay: str = "weight_decay") -> dict[str, Any]:
        """As options of a group: torch adds L2 itself, a hook of ours adds the rest."""
        made: dict[str, Any] = {weight_decay: self.l2} if self.l2 else {}
        return made | ({"l1_decay": self.l1} if self.l1 else {})


def add_hooks(optimizer: Optimizer) -> None:
    """Let an optimizer do what options of its groups say that torch does not know."""
    groups = optimizer.param_groups
    if any(group.get("l1_decay") or group.get("l2_decay") for group in groups):
        optimizer.register_step_pre_hook(_add_decays)
    if any(group.get("lazy_mode") for group in groups):
        optimizer.register_step_pre_hook(_keep_rows)
        optimizer.register_step_post_hook(_restore_rows)


@torch.no_grad()
def _add_decays(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and group.get("l1_decay"):
                p.grad.add_(p.sign(), alpha=group["l1_decay"])
            if p.grad is not None and group.get("l2_decay"):
                p.grad.add_(p, alpha=group["l2_decay"])


def _lazy(optimizer: Optimizer) -> list[Tensor]:
    """Tables of which a batch moves the rows that it used, and no others."""
    groups = (group for group in optimizer.param_groups if group.get("lazy_mode"))
    listed = (p for group in groups for p in group["params"])
    return [p for p in listed if p.grad is not None and getattr(p, "sparse_rows", False)]


@torch.no_grad()
def _keep_rows(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for p in _lazy(optimizer):
        assert p.grad is not None
        idle = (p.grad == 0).flatten(1).all(1)
        state = {n: v for n, v in optimizer.state[p].items() if _same_shape(v, p)}
        before = {n: v[idle].clone() for n, v in state.items()}
        vars(p)["idle_rows"] = (idle, p[idle].clone(), before)


@torch.no_grad()
def _restore_rows(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for p in _lazy(optimizer):
        idle, values, before = vars(p).pop("idle_rows")
        p[idle] = values
        for name, value in optimizer.state[p].items():
            if _same_shape(value, p):
                value[idle] = before.get(name, 0.0)


def _same_shape(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape
