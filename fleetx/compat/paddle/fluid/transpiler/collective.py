"""``paddle.fluid.transpiler.collective``: what rewrote programs for several cards."""

from typing import Any

from fleetx.compat.fleet_strategies import DistributedStrategy
from fleetx.compat.paddle.fluid.transpiler.distribute_transpiler import _spread


class Collective:
    """Rewrites a program that trains."""

    def __init__(self, nrings: int = 1) -> None:
        self.nrings = nrings

    def transpile(  # noqa: PLR0917 (the order of Paddle)
        self,
        startup_program: Any,
        main_program: Any,
        rank: int,
        endpoints: Any,
        current_endpoint: str,
        wait_port: bool = True,
    ) -> None:
        """Let every run be one update of all workers."""
        _spread(main_program, startup_program)


class GradAllReduce(Collective):
    """Workers exchange gradients."""


class LocalSGD(Collective):
    """Workers exchange parameters; it is a strategy here."""

    def __init__(self, nrings: int = 1) -> None:
        raise NotImplementedError(
            "fluid.transpiler.collective.LocalSGD rewrites a program in place; set "
            f"use_local_sgd = True of {DistributedStrategy.__name__} and use fleet instead."
        )
