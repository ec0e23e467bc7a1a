"""What a script assigns to ``p.grad.data``, where DDP exchanges gradients in buckets.

A gradient is a view of its bucket, and stays the same tensor from batch to batch. Other numbers put
into it by ``p.grad.data = values`` take it out of the bucket for good: later gradients would be
those of one worker, added to what was there.
"""

import weakref
from dataclasses import replace

from torch import Tensor, nn

from fleetx.plan.error import PlanError
from fleetx.plan.own_hooks import OwnHooks
from fleetx.plan.step import Step

_ASSIGNED = (
    "the script assigns to p.grad.data of the parameter {!r}, whose gradient lies in a buffer that "
    "workers exchange; the next ones would no longer be exchanged. Write into the gradient, "
    "p.grad.mul_(0.5) or p.grad.copy_(values), or replace it: p.grad = values."
)
_FIRST, _THEN = 4, 16
"""The first updates are looked at, and then two in a row of so many: loops do it from the start."""


def refuse_shares(step: Step, model: nn.Module, rank: int) -> Step:
    """Look before updates whether gradients are those of all, and tell of hooks that saw less."""
    gradients = _Gradients(model)
    hooks = OwnHooks(model, "one worker, before workers have averaged theirs", speaks=rank == 0)

    def update() -> bool:
        gradients.check()
        hooks.tell()
        return step.update()

    return replace(step, update=update)


class _Gradients:
    """Holds gradients at an update against those at the one that was looked at before."""

    def __init__(self, model: nn.Module) -> None:
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._before: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._updates = 0

    def check(self) -> None:
        """Complain of one that is the same tensor, and lies elsewhere."""
        self._updates += 1
        if self._updates > _FIRST and self._updates % _THEN > 1:
            return
        for name, parameter in self._named.items():
            if (gradient := parameter.grad) is None or gradient.is_sparse:
                continue
            place = gradient.data_ptr()
            held, was = self._before.get(name, (None, place))
            if held is not None and held() is gradient and was != place:
                self._before.clear()  # said once, for a script that goes on
                raise PlanError(_ASSIGNED.format(name))
            self._before[name] = weakref.ref(gradient), place
