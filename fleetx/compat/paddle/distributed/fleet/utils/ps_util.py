"""``paddle.distributed.fleet.utils.ps_util``."""

from typing import Any

from fleetx import roles
from fleetx.compat.eager_fleet import fleet
from fleetx.compat.fleet_strategies import DistributedStrategy
from fleetx.compat.paddle.optimizer import SGD
from fleetx.compat.programs import (
    Program,
    default_main_program,
    default_startup_program,
    ours,
    program_guard,
)


class DistributedInfer:
    """A program that computes with the tables of the servers, without training."""

    def __init__(self, main_program: Any = None, startup_program: Any = None) -> None:
        self._program: Program = main_program or default_main_program()
        self._startup: Program = startup_program or default_startup_program()

    def init_distributed_infer_env(
        self, exe: Any, loss: Any, role_maker: Any = None, dirname: str | None = None
    ) -> None:
        """Begin a job of servers that hold what was saved; where one runs already, it is used.

        A server stays in this call until the workers have stopped.

        Args:
            exe: the one that runs the program.
            loss: a variable that depends on the tables.
            role_maker: says who this process is.
            dirname: the folder of ``fleet.save_persistables`` from which servers begin.
        """
        if roles.started():
            return
        fleet.init(role_maker)
        strategy = DistributedStrategy()
        strategy.a_sync = True
        with program_guard(self._program, self._startup):
            fleet.distributed_optimizer(SGD(learning_rate=0.0), strategy).minimize(loss)
        if fleet.is_server():
            fleet.init_server(dirname)
            fleet.run_server()
        else:
            exe.run(self._startup)
            fleet.init_worker()

    def get_dist_infer_program(self) -> Program:
        """The program as it computes."""
        return ours(self._program.clone(for_test=True))
