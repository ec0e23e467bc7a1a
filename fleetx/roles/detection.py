"""Which launcher started this process: the table of those that fleetx knows."""

import os
from collections.abc import Mapping

from typing_extensions import override

from fleetx.expected import MAPPING, expect
from fleetx.roles.environment import Environment
from fleetx.roles.kubernetes import IndexedJob, Volcano
from fleetx.roles.launched import LaunchedRoleMaker, OneProcess
from fleetx.roles.mpi import MPISymetricRoleMaker, MPIWorkers, started_several
from fleetx.roles.paddle_variables import Fleetrun, PaddleVariables
from fleetx.roles.role import Identity, RoleMaker
from fleetx.roles.slurm import Slurm
from fleetx.roles.torch_variables import HalfSetTorchVariables, PyTorchJob, Torchrun, TorchVariables

LAUNCHERS: tuple[type[LaunchedRoleMaker], ...] = (
    # The innermost launcher knows best: schedulers start pods and tasks, in which others start
    # processes that still see the scheduler's variables.
    Fleetrun,  # runs on torch's agent, so it must be asked before torchrun
    Torchrun,
    PaddleVariables,
    PyTorchJob,
    TorchVariables,
    MPIWorkers,  # inside a SLURM job, srun starts mpirun's daemons and leaves its variables
    Slurm,
    Volcano,
    IndexedJob,
    HalfSetTorchVariables,
    OneProcess,
)
"""Asked from top to bottom; the first that finds its variables answers."""


def detect(environ: Mapping[str, str] | None = None, *, is_collective: bool) -> RoleMaker:
    """Return the role maker for the launcher whose variables are there."""
    variables = os.environ if environ is None else environ
    env = Environment(variables)
    launcher = next(launcher for launcher in LAUNCHERS if launcher.found_in(env))
    if launcher is MPIWorkers and not is_collective and started_several(env):
        # What the documents promise for fleet.init() in an MPI job with parameter servers.
        return MPISymetricRoleMaker()
    return launcher(is_collective, environ=variables)


class PaddleCloudRoleMaker(RoleMaker):
    """Takes the role from the environment, whichever launcher filled it."""

    def __init__(
        self,
        is_collective: bool = False,
        *,
        init_gloo: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            is_collective: whether every process is a worker.
            init_gloo: accepted for old scripts; the workers' group is always made where it can be.
            environ: variables to read instead of the process's own.
        """
        if not isinstance(is_collective, bool):
            raise TypeError(
                f"PaddleCloudRoleMaker(is_collective={is_collective!r}) is not a bool; "
                "pass True or False"
            )
        expect("PaddleCloudRoleMaker", "environ", environ, MAPPING | None)
        self.is_collective = is_collective
        self.init_gloo = init_gloo
        self._environ = environ

    @override
    def identity(self) -> Identity:
        return detect(self._environ, is_collective=self.is_collective).identity()
