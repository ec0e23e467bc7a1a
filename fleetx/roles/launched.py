"""The base of role makers that read what a launcher wrote into the environment."""

import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from typing_extensions import override

from fleetx.roles.environment import Environment
from fleetx.roles.role import Identity, RoleMaker


class LaunchedRoleMaker(RoleMaker):
    """Workers that a launcher started; parameter servers only where a subclass knows them."""

    def __init__(
        self, is_collective: bool = True, *, environ: Mapping[str, str] | None = None
    ) -> None:
        self.is_collective = is_collective
        self.env = Environment(os.environ if environ is None else environ)

    @staticmethod
    @abstractmethod
    def found_in(env: Environment) -> bool:
        """Whether the variables of this launcher are there."""

    @abstractmethod
    def workers(self) -> Identity:
        """The identity in a collective job."""

    @override
    def identity(self) -> Identity:
        found = self.workers()
        if self.is_collective:
            return found
        if found.worker_num > 1:
            raise ValueError(
                f"is_collective=False asks for parameter servers, but {found.source} started "
                f"{found.worker_num} workers and no server; call fleet.init(is_collective=True), "
                "or start servers too with fleetrun --server_num 1 --worker_num "
                f"{found.worker_num}"
            )
        return replace(found, is_collective=False)


class OneProcess(LaunchedRoleMaker):
    """Nobody started us: one worker, alone."""

    @staticmethod
    @override
    def found_in(env: Environment) -> bool:
        return True

    @override
    def workers(self) -> Identity:
        source = "one process"
        job = self.env.text("SLURM_JOB_ID")
        if job and self.env.number("SLURM_NTASKS", 1) > 1:
            # The shell of sbatch or salloc sees the whole allocation but is a single task of it.
            source = f"one process (in SLURM job {job}; start the script with srun to use its "
            source += f"{self.env.text('SLURM_NTASKS')} tasks)"
        return Identity(
            source=source,
            is_collective=True,
            local_size=1,
            node_num=1,
            device_index=self.env.device(),
        )
