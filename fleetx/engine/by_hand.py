"""Parameters that a script moves by hand, where the plan has work to do at updates."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fleetx.comm.local import local
from fleetx.comm.same_numbers import print_of
from fleetx.plan.error import PlanError

MOVES = 2
"""Times that parameters are others at a forward than at the one before, with gradients there, after
which it is taken for training; once may be a load."""


class ByHand:
    """Watches a model that has no distributed optimizer."""

    def __init__(self) -> None:
        self._before: Tensor | None = None
        self._moves = 0

    def look(self, model: nn.Module, at_update: Sequence[str]) -> None:
        """A forward begins.

        Args:
            model: whose forward it is.
            at_update: what would be lost with updates that go past the plan.
        """
        if not at_update:
            return
        reached = (p for p in model.parameters() if p.requires_grad and p.grad is not None)
        found = next((part for p in reached if (part := local(p)).numel()), None)
        if found is None:
            return
        before, self._before = self._before, print_of(found)
        self._moves += before is not None and not torch.equal(before, self._before)
        if self._moves >= MOVES:
            raise PlanError(
                "the script moves parameters of a distributed model by hand, as by p.data -= lr * "
                "p.grad, and so past the plan, which would lose what it does or checks at an "
                f"update: {', '.join(at_update)}. Move them by optimizer = "
                "fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr)), with "
                "optimizer.minimize(loss), or leave these flags out."
            )
