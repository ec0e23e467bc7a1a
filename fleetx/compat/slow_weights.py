"""Slow weights behind fast ones (Lookahead): every ``k`` updates the two meet between them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fleetx import roles
from fleetx.api import session

SLOW, COUNT = "slow", "slow_count"
"""What an optimizer keeps for a parameter: the slow weight, and the updates since they met."""

_REFUSED = {
    "cuda_graph": "replays updates without the host, which counts them",
    "parameter_server": "lets servers make the updates",
    "a_sync": "lets servers make the updates",
}
"""Strategies under which no update of a worker can be followed by another."""


class SlowWeights:
    """``slow += alpha * (fast - slow); fast = slow`` after every ``k`` updates of an optimizer.

    They are state of the optimizer, so that they are saved, laid out and begun anew with it.
    """

    def __init__(self, alpha: Any, k: Any, *, after_first: bool = False) -> None:
        """Check what a script chose.

        Args:
            alpha: how far the slow weights go.
            k: after how many updates.
            after_first: begin at the values after the first update, not at those before it.
        """
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
            raise ValueError(f"alpha is the share of the fast weights, from 0 to 1, got {alpha!r}")
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k is a number of updates, 1 or more, got {k!r}")
        self.alpha, self.k = float(alpha), k
        self._after_first = after_first
        self._before: dict[Tensor, Tensor] = {}

    def check(self) -> None:
        """Refuse strategies under which nothing would follow an update."""
        if not (roles.started() and session.begun()):
            return
        on = [name for name in _REFUSED if name in session.request().strategies]
        if not roles.identity("minimize").is_collective:
            on.append("parameter_server")
        if on:
            raise ValueError(
                f"Lookahead(alpha={self.alpha}, k={self.k}) moves parameters again behind an "
                f"update, and {on[0]} {_REFUSED[on[0]]}; turn {on[0]} off, or train with the inner "
                "optimizer."
            )

    def follow(self, optimizer: Optimizer) -> None:
        """Be in force at every update of an optimizer."""
        if not self._after_first:
            optimizer.register_step_pre_hook(self._look)
        optimizer.register_step_post_hook(self._move)

    @torch.no_grad()
    def _look(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Note the values at which slow weights begin; the state is the optimizer's to begin."""
        new = (p for p in _moving(optimizer) if SLOW not in optimizer.state.get(p, {}))
        self._before = {p: p.detach().clone() for p in new}

    @torch.no_grad()
    def _move(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        states = optimizer.state
        held = [p for group in optimizer.param_groups for p in group["params"]]
        followed = [p for p in held if SLOW in states.get(p, {})]
        count = max((int(states[p][COUNT]) for p in followed), default=0) + 1
        for p in _moving(optimizer):
            if SLOW not in states[p]:
                begin = self._before.pop(p, None)
                states[p][SLOW] = p.detach().clone() if begin is None else begin
                followed.append(p)
        for p in followed:
            if count == self.k:
                p.copy_(states[p][SLOW].mul_(1 - self.alpha).add_(p, alpha=self.alpha))
            states[p][COUNT] = torch.tensor(float(count % self.k))
        self._before = {}


def _moving(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters that an update moves: the others stay where they began."""
    for group in optimizer.param_groups:
        yield from (p for p in group["params"] if p.grad is not None)
