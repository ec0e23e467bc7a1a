"""Static programs: build once, rewrite, run anywhere."""

import importlib
from typing import Any

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
from fleetx.static.fetch_handler import FetchHandler
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


def __getattr__(name: str) -> Any:
    # Saving is a room of its own, which uses this one.
    if name in _SAVED_BY:
        return getattr(importlib.import_module("fleetx.io"), name)
    raise AttributeError(f"module 'fleetx.static' has no attribute {name!r}")
