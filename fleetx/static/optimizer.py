"""``static.Optimizer``: a torch optimizer described before its parameters are known."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn, optim

from fleetx.expected import NUMBER, Kind, expect
from fleetx.plan.error import PlanError

if TYPE_CHECKING:
    from fleetx.api.grad_clip import GradClip
    from fleetx.static.program import Program

Schedule = Callable[[int], float]
"""Number of runs before this one -> learning rate."""


_CLASS = Kind(
    "a class of torch.optim, such as torch.optim.SGD",
    lambda cls: isinstance(cls, type) and issubclass(cls, optim.Optimizer),
)
_RATE = NUMBER.such_as("a number, or a schedule of fleetx.static.lr,")


class Optimizer:
    """Any class of ``torch.optim`` and its options; a program supplies the parameters.

    ``Optimizer(torch.optim.SGD, lr=0.1, momentum=0.9).minimize(loss)``. The learning rate may be a
    schedule of ``static.lr``, which ticks with every run of the program.
    """

    def __init__(
        self,
        cls: type[optim.Optimizer],
        *,
        lr: float | Schedule | None = None,
        grad_clip: "GradClip | None" = None,
        **options: Any,
    ) -> None:
        expect("static.Optimizer", "cls", cls, _CLASS)
        if unknown := sorted(options.keys() - inspect.signature(cls).parameters.keys()):
            raise TypeError(f"torch.optim.{cls.__name__} has no option {', '.join(unknown)}")
        if lr is not None and not callable(lr):
            expect("static.Optimizer", "lr", lr, _RATE)
        self.cls, self.grad_clip = cls, grad_clip
        self.schedule: Schedule | None = lr if callable(lr) else None
        first = lr(0) if callable(lr) else lr
        self.options: Mapping[str, Any] = options if first is None else {**options, "lr": first}

    def build(self, parameters: Sequence[nn.Parameter], *, fused: bool = False) -> optim.Optimizer:
        """The optimizer over these parameters; ``fused`` moves all of them in few kernels."""
        if not fused:
            return self.cls(list(parameters), **self.options)
        if "foreach" not in inspect.signature(self.cls).parameters:
            raise PlanError(
                f"build_strategy.fuse_all_optimizer_ops = True cannot be in force: "
                f"{self.cls.__name__} moves parameters one by one. Leave it False."
            )
        return self.cls(list(parameters), **{"foreach": True, **self.options})

    def minimize(
        self,
        loss: Tensor,
        startup_program: "Program | None" = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
    ) -> Any:
        """Let every run of the loss's program end in an update; see ``static.minimize``."""
        from fleetx.static.minimize import minimize

        return minimize(
            self, loss, startup_program, parameter_list, no_grad_set, grad_clip=self.grad_clip
        )

    def distributed(self, grad_clip: "GradClip | None") -> Any:
        """The same for all workers of the job; what ``fleet.distributed_optimizer`` returns."""
        from fleetx.static.distributed import ProgramOptimizer

        return ProgramOptimizer(self, grad_clip or self.grad_clip)
