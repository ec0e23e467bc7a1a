"""``static.Optimizer``: what a script gives a program to train with."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from fleetx.api.grad_clip import GradClip
from fleetx.static.record.program import Program
from fleetx.static.run.distributed import ProgramOptimizer
from fleetx.static.run.minimize import minimize
from fleetx.static.run.optimizer_options import OptimizerOptions


class Optimizer(OptimizerOptions):
    """Any class of ``torch.optim`` and its options; a program supplies the parameters.

    ``Optimizer(torch.optim.SGD, lr=0.1, momentum=0.9).minimize(loss)``. The learning rate may be a
    schedule of ``static.lr``, which ticks with every run of the program.
    """

    def minimize(
        self,
        loss: Tensor,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
    ) -> Any:
        """Let every run of the loss's program end in an update; see ``static.minimize``."""
        return minimize(
            self, loss, startup_program, parameter_list, no_grad_set, grad_clip=self.grad_clip
        )

    def distributed(self, grad_clip: GradClip | None) -> Any:
        """The same for all workers of the job; what ``fleet.distributed_optimizer`` returns."""
        return ProgramOptimizer(self, grad_clip or self.grad_clip)
