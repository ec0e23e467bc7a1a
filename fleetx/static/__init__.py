"""Static programs: build once, rewrite, run anywhere."""

from fleetx.config.block import BuildStrategy, ExecutionStrategy
from fleetx.static import lr, nn
from fleetx.static.backward import append_backward, gradients
from fleetx.static.collectives import all_reduce
from fleetx.static.compiled import CompiledProgram
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
from fleetx.static.layers import ParamAttr
from fleetx.static.metrics import accuracy, auc
from fleetx.static.minimize import minimize
from fleetx.static.optimizer import Optimizer
from fleetx.static.places import CPUPlace, CUDAPlace
from fleetx.static.program import Program
from fleetx.static.readers import DataLoader, EOFException, py_reader, read_file
from fleetx.static.scope import global_scope
from fleetx.static.variable import Variable

__all__ = [
    "BuildStrategy",
    "CPUPlace",
    "CUDAPlace",
    "CompiledProgram",
    "DataLoader",
    "EOFException",
    "ExecutionStrategy",
    "Executor",
    "Optimizer",
    "ParamAttr",
    "Program",
    "ProgramError",
    "Variable",
    "accuracy",
    "all_reduce",
    "append_backward",
    "auc",
    "data",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "global_scope",
    "gradients",
    "lr",
    "minimize",
    "nn",
    "program_guard",
    "py_reader",
    "read_file",
    "reset",
    "unique_name",
]
