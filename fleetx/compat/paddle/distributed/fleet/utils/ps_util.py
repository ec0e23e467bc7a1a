"""``paddle.distributed.fleet.utils.ps_util``."""

from typing import Any

from fleetx.compat.programs import Program, default_main_program, ours


class DistributedInfer:
    """A program that computes with the tables of the servers, without training."""

    def __init__(self, main_program: Any = None, startup_program: Any = None) -> None:
        self._program: Program = main_program or default_main_program()

    def init_distributed_infer_env(
        self, exe: Any, loss: Any, role_maker: Any = None, dirname: str | None = None
    ) -> None:
        """Nothing to do after ``fleet.init_worker``: the tables are there."""

    def get_dist_infer_program(self) -> Program:
        """The program as it computes."""
        return ours(self._program.clone(for_test=True))
