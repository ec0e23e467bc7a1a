"""``paddle.fluid.parallel_executor``."""

from typing import Any

from fleetx import static
from fleetx.compat import places
from fleetx.compat.notes import note
from fleetx.compat.running import Executor
from fleetx.compat.strategies import BuildStrategy, CompiledProgram, ExecutionStrategy

__all__ = ["BuildStrategy", "ExecutionStrategy", "ParallelExecutor"]


class ParallelExecutor:
    """One program on all cards of a process in Paddle 1; here a process has one."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        use_cuda: bool = False,
        loss_name: str | None = None,
        main_program: Any = None,
        share_vars_from: Any = None,
        exec_strategy: Any = None,
        build_strategy: Any = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Any = None,
    ) -> None:
        program = static.default_main_program() if main_program is None else main_program
        self._program = CompiledProgram(program).with_data_parallel(
            loss_name, build_strategy, exec_strategy, share_vars_from
        )
        self._scope = scope
        self._executor = Executor(places.cuda_places()[0] if use_cuda else places.CPUPlace())
        if num_trainers > 1:
            note("ParallelExecutor(num_trainers=…)", "fleet.init() knows the workers of the job.")

    def run(
        self,
        fetch_list: Any = None,
        feed: Any = None,
        feed_dict: Any = None,
        return_numpy: bool = True,
    ) -> Any:
        """Run the program once."""
        given = feed_dict if feed is None else feed
        return self._executor.run(
            self._program, given, fetch_list, scope=self._scope, return_numpy=return_numpy
        )

    @property
    def device_count(self) -> int:
        """The cards of this process."""
        return 1

    def drop_local_exe_scopes(self) -> None:
        """Nothing is kept between runs."""
