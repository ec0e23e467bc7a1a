"""``DistributeTranspiler``: makes a program of one worker one of several."""

from typing import Any

import fleetx
from fleetx import roles
from fleetx.compat.distribution import distribute
from fleetx.compat.fleet_strategies import DistributeTranspilerConfig
from fleetx.compat.programs import Program as OwnProgram
from fleetx.compat.programs import default_main_program
from fleetx.compat.role_makers import UserDefinedCollectiveRoleMaker
from fleetx.compat.transpiled import ServerJob, ServerProgram
from fleetx.static.record.program import Program
from fleetx.static.run.training import training_of

__all__ = ["DistributeTranspiler", "DistributeTranspilerConfig"]


class DistributeTranspiler:
    """Rewrites programs for several workers, with servers or among themselves."""

    def __init__(self, config: DistributeTranspilerConfig | None = None) -> None:
        self.config = config or DistributeTranspilerConfig()
        self._servers: ServerJob | None = None

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
        program = program or default_main_program()
        if self.config.mode not in {"nccl2", "collective"}:
            self.config.sync_mode = bool(sync_mode)
            self._servers = ServerJob(
                int(trainer_id),
                [endpoint.strip() for endpoint in pservers.split(",") if endpoint.strip()],
                int(trainers),
                lambda: _spread(program, startup_program, self.config),
            )
            return
        if not roles.started():
            listed = trainers.split(",") if isinstance(trainers, str) else None
            if listed and not _launched(len(listed)):
                fleetx.init(UserDefinedCollectiveRoleMaker(trainer_id, listed))
            else:
                fleetx.init(is_collective=True)
        _spread(program, startup_program)

    def get_trainer_program(self, wait_port: bool = True) -> Any:
        """The program that trains; a worker of servers meets them here."""
        if self._servers is not None:
            self._servers.begin_worker()
        return fleetx.main_program

    def _job(self, call: str) -> "ServerJob":
        if self._servers is None:
            raise RuntimeError(
                f"DistributeTranspiler.{call}() gives what a server runs, and transpile() was not "
                "called, or for workers alone; call transpile(trainer_id, pservers=..., "
                "trainers=...) with config.mode = 'pserver'."
            )
        return self._servers

    def get_pserver_program(self, endpoint: str) -> ServerProgram:
        """What the server of this address runs."""
        return self._job("get_pserver_program").begin_server(endpoint)

    def get_pserver_programs(self, endpoint: str) -> tuple[ServerProgram, Any]:
        """The same, and what it starts with."""
        return self.get_pserver_program(endpoint), self.get_startup_program(endpoint)

    def get_startup_program(
        self, endpoint: str, pserver_program: Any = None, startup_program: Any = None
    ) -> Any:
        """What a server starts with: nothing, for workers bring the first values."""
        self._job("get_startup_program")
        return OwnProgram()


def _launched(count: int) -> bool:
    """Whether a launcher has told this process its place among so many."""
    return roles.detect(is_collective=True).identity().worker_num == count


def _spread(program: Program, startup: Program | None, config: Any = None) -> None:
    training = training_of(program)
    if training is None:
        raise ValueError(
            "DistributeTranspiler.transpile() rewrites a program that trains, and this one has no "
            "optimizer; call optimizer.minimize(loss) before."
        )
    if training.plan is not None:
        return  # it is one of several workers already
    program.objective = None
    made = distribute(training.optimizer, config)
    made.minimize(program.var(training.loss), startup, list(training.trained))
