"""``DistributeTranspiler``: makes a program of one worker one of several."""

from typing import Any

import fleetx
from fleetx import roles
from fleetx.compat.distribution import distribute
from fleetx.compat.fleet_strategies import DistributeTranspilerConfig
from fleetx.compat.programs import default_main_program
from fleetx.compat.role_makers import UserDefinedCollectiveRoleMaker
from fleetx.static.record.program import Program
from fleetx.static.run.training import training_of

__all__ = ["DistributeTranspiler", "DistributeTranspilerConfig"]


class DistributeTranspiler:
    """Rewrites programs for several workers; those of servers are rewritten by ``fleet``."""

    def __init__(self, config: DistributeTranspilerConfig | None = None) -> None:
        self.config = config or DistributeTranspilerConfig()

    def transpile(  # noqa: PLR0917 (the order of Paddle)
        self,
        trainer_id: int,
        program: Program | None = None,
        pservers: str = "",
        trainers: int | str = 1,
        sync_mode: bool = True,
        startup_program: Program | None = None,
        current_endpoint: str = "",
    ) -> None:
        """Let every run of a program that trains be one update of all workers."""
        if self.config.mode not in {"nccl2", "collective"}:
            raise NotImplementedError(
                f"DistributeTranspiler with config.mode = {self.config.mode!r} makes programs of "
                f"servers ({pservers or 'pservers'}), which are no programs here; use fleet of "
                "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler."
            )
        if not roles.started():
            listed = trainers.split(",") if isinstance(trainers, str) else None
            if listed and not _launched(len(listed)):
                fleetx.init(UserDefinedCollectiveRoleMaker(trainer_id, listed))
            else:
                fleetx.init(is_collective=True)
        _spread(program or default_main_program(), startup_program)

    def get_trainer_program(self, wait_port: bool = True) -> Any:
        """The program that trains."""
        return fleetx.main_program


def _launched(count: int) -> bool:
    """Whether a launcher has told this process its place among so many."""
    return roles.detect(is_collective=True).identity().worker_num == count


def _spread(program: Program, startup: Program | None) -> None:
    training = training_of(program)
    if training is None:
        raise ValueError(
            "DistributeTranspiler.transpile() rewrites a program that trains, and this one has no "
            "optimizer; call optimizer.minimize(loss) before."
        )
    if training.plan is not None:
        return  # it is one of several workers already
    program.objective = None
    made = distribute(training.optimizer)
    made.minimize(program.var(training.loss), startup, list(training.trained))
