"""Static programs: build once, rewrite, run anywhere."""

import importlib
from typing import Any

from fleetx.config.block import BuildStrategy, ExecutionStrategy
from fleetx.record.error import ProgramError
from fleetx.record.variable import Variable
from fleetx.static import lr, nn
from fleetx.static.layers.collectives import all_reduce
from fleetx.static.layers.metrics import accuracy, auc
from fleetx.static.layers.parameters import ParamAttr
from fleetx.static.record.backward import append_backward, gradients
from fleetx.static.record.current import (
    default_main_program,
    default_startup_program,
    device_guard,
    program_guard,
    reset,
    unique_name,
)
from fleetx.static.record.inputs import data
from fleetx.static.record.program import Program
from fleetx.static.run.compiled import CompiledProgram
from fleetx.static.run.devices import CPUPlace, CUDAPlace
from fleetx.static.run.distributed import minimize_by
from fleetx.static.run.executor import Executor
from fleetx.static.run.fetch_handler import FetchHandler
from fleetx.static.run.minimize import minimize
from fleetx.static.run.optimizer import Optimizer
from fleetx.static.run.readers import DataLoader, EOFException, py_reader, read_file
from fleetx.static.run.scope import global_scope

__all__ = [
    "BuildStrategy",
    "CPUPlace",
    "CUDAPlace",
    "CompiledProgram",
    "DataLoader",
    "EOFException",
    "ExecutionStrategy",
    "Executor",
    "FetchHandler",
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
    "load",
    "load_inference_model",
    "load_program_state",
    "lr",
    "minimize",
    "nn",
    "program_guard",
    "py_reader",
    "read_file",
    "reset",
    "save",
    "save_inference_model",
    "set_program_state",
    "unique_name",
]

_SAVED_BY = {
    "load",
    "load_inference_model",
    "load_program_state",
    "save",
    "save_inference_model",
    "set_program_state",
}


# ``minimize`` of a distributed torch optimizer asks the loss how it is done. Variables are made
# where programs are recorded, which must not know how they are trained: the two meet here.
Variable.minimized = minimize_by


def __getattr__(name: str) -> Any:
    # Saving is a package of its own, which uses this one and must not be imported by it.
    if name in _SAVED_BY:
        return getattr(importlib.import_module("fleetx.io"), name)
    raise AttributeError(f"module 'fleetx.static' has no attribute {name!r}")
