"""A program's values in files beside each other: ``save``, ``load`` and plain dictionaries."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fleetx.api.session import may_save
from fleetx.io.files import Folder, load_tensors, save_tensors
from fleetx.io.persistables import name_of
from fleetx.io.values import put, restart_without, training_values, values, whole_values
from fleetx.plan.option import unknown
from fleetx.record.error import ProgramError
from fleetx.static.record.program import Program
from fleetx.static.run.arrays import as_array

PARAMETERS = ".params.safetensors"
OPTIMIZER = ".optimizer.safetensors"


def save(program: Program, model_path: Folder) -> None:
    """Write ``<model_path>.params.safetensors``, and the optimizer's state beside it if any."""
    _is_program(program)
    save_tensors(_beside(model_path, PARAMETERS), whole_values(program, "static.save"))
    if state := training_values(program):
        save_tensors(_beside(model_path, OPTIMIZER), state)
    elif may_save():  # one of an earlier day would be loaded with these values
        _beside(model_path, OPTIMIZER).unlink(missing_ok=True)


def load(
    program: Program,
    model_path: Folder,
    executor: Any = None,
    var_list: Iterable[Tensor | str] | None = None,
) -> None:
    """Take back what ``save`` wrote, all of it or the listed variables."""
    _is_program(program)
    found: dict[str, Any] = load_program_state(model_path)
    if var_list is not None:
        names = [name_of(entry) for entry in var_list]
        found = {name: found[name] for name in _known(names, found)}
    else:
        restart_without(program, found)
    set_program_state(program, found)


def load_program_state(
    model_path: Folder, var_list: Iterable[Tensor | str] | None = None
) -> dict[str, np.ndarray]:
    """Name -> array of everything that ``save`` wrote, or of the listed variables.

    Numbers in formats that numpy lacks, such as bfloat16, are float32 there.
    """
    tensors = load_tensors(_beside(model_path, PARAMETERS))
    beside = _beside(model_path, OPTIMIZER)
    if beside.is_file():
        tensors |= load_tensors(beside)
    if var_list is not None:
        names = [name_of(entry) for entry in var_list]
        tensors = {name: tensors[name] for name in _known(names, tensors)}
    return {name: as_array(tensor) for name, tensor in tensors.items()}


def set_program_state(program: Program, state_dict: Mapping[str, Any]) -> None:
    """Overwrite values of the program by name; those that are not named keep theirs."""
    _is_program(program)
    known = values(program)
    for name in state_dict:
        if name not in known and "@" not in name:
            raise ProgramError(unknown(f"the program has no value {name!r}", name, known))
    put(program, {name: torch.as_tensor(np.asarray(v)) for name, v in state_dict.items()})


def _beside(model_path: Folder, ending: str) -> Path:
    path = Path(model_path)
    return path.with_name(path.name + ending)


def _known(names: list[str], found: Mapping[str, Any]) -> list[str]:
    for name in names:
        if name not in found:
            raise ProgramError(unknown(f"the file has no value {name!r}", name, found))
    return names


def _is_program(program: object) -> None:
    if not isinstance(program, Program):
        raise TypeError(f"a static.Program is saved and loaded, got {program!r}")
