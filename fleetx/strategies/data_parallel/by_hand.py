"""Parameters that a script moves by gradients that workers have not exchanged."""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fleetx.comm.same_numbers import bounds_over, first_apart, held_here, print_of, prints_of
from fleetx.plan.error import PlanError

_APART = (
    "workers hold different numbers in the parameter {!r}, after gradients of "
    "torch.autograd.grad(), which they do not exchange: parameters that a script moves by them "
    "train apart. Call loss.backward(), and step the optimizer that "
    "fleet.distributed_optimizer() returned."
)
EVERY = 64
"""Times that parameters were others than before between two comparisons, at the most."""


class ByHand:
    """Compares replicas where a script takes gradients past them, and parameters move.

    Both are so on all workers of a loop, or on none.
    """

    def __init__(self) -> None:
        self._before: list[Tensor] = []
        self._moves = 0

    def look(self, replica: DistributedDataParallel) -> None:
        """A forward begins, and gradients since the last one came to no parameter."""
        named = replica.module.named_parameters()
        trained = held_here({name: p for name, p in named if p.requires_grad})
        # Whoever moves parameters by hand moves all: two tell whether, for a dozen small operators.
        some = [print_of(p) for p in (*trained.values(),)[:: max(1, len(trained) - 1)]]
        before, self._before = self._before, some
        if not before or all(map(torch.equal, before, some)):
            return
        self._moves += 1
        if self._moves & (self._moves - 1) and self._moves % EVERY:
            return
        prints = prints_of([*trained.values()])
        bounds = bounds_over(prints, replica.process_group, next(iter(trained.values())).device)
        if apart := first_apart(trained, *bounds):
            raise PlanError(_APART.format(apart))
