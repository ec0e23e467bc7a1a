"""Static programs: build once, rewrite, run anywhere."""

from fleetx.static.backward import append_backward, gradients
from fleetx.static.current import (
    default_main_program,
    default_startup_program,
    device_guard,
    program_guard,
    reset,
    unique_name,
)
from fleetx.static.error import ProgramError
from fleetx.static.executor import Executor
from fleetx.static.inputs import data
from fleetx.static.minimize import minimize
from fleetx.static.optimizer import Optimizer
from fleetx.static.places import CPUPlace, CUDAPlace
from fleetx.static.program import Program
from fleetx.static.variable import Variable

__all__ = [
    "CPUPlace",
    "CUDAPlace",
    "Executor",
    "Optimizer",
    "Program",
    "ProgramError",
    "Variable",
    "append_backward",
    "data",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "gradients",
    "minimize",
    "program_guard",
    "reset",
    "unique_name",
]
