"""Models that Paddle itself saved: its program is read, and its operators are torch's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fleetx.compat.files import tensors
from fleetx.compat.files.program_desc import Operation, ProgramFile, parsed
from fleetx.compat.files.tensors import FormatError
from fleetx.compat.foreign_operators import FORMATS, OPERATORS
from fleetx.record.error import ProgramError
from fleetx.static.record.current import program_guard
from fleetx.static.record.inputs import data
from fleetx.static.record.program import Program

_RESULTS = ("Out", "Y", "Output")
"""How operators call what they give; notes for a backward have other names."""


class ForeignModel(nn.Module):
    """A model of Paddle's: operators one after the other."""

    one_operator = True

    def __init__(self, read: ProgramFile, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._operations = [op for op in read.operations if op.type not in {"feed", "fetch"}]
        self.feeds = [op.outputs["Out"][0] for op in read.operations if op.type == "feed"]
        self.fetches = [op.inputs["X"][0] for op in read.operations if op.type == "fetch"]
        self._places = {}
        for number, (name, value) in enumerate(weights.items()):
            self._places[name] = f"value_{number}"
            self.register_buffer(f"value_{number}", value)

    @override
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """What the model gives for its inputs, in their order."""
        known = {name: self.get_buffer(place) for name, place in self._places.items()}
        known |= dict(zip(self.feeds, inputs, strict=True))
        for operation in self._operations:
            _run(operation, known)
        return tuple(known[name] for name in self.fetches)


def _run(operation: Operation, known: dict[str, Tensor]) -> None:
    given = {slot: [known[n] for n in names] for slot, names in operation.inputs.items() if names}
    made: Any = OPERATORS[operation.type](given, operation.attrs)
    names = next(operation.outputs[slot] for slot in _RESULTS if operation.outputs.get(slot))
    known.update(zip(names, made if isinstance(made, list) else [made], strict=True))


def load(model: Path, params: Path | None) -> tuple[Program, list[str], list[Any]]:
    """The program of a file, its inputs by name, and its outputs.

    Args:
        model: the file of the program.
        params: one file for all weights; beside the model, a file for each, if None.
    """
    read = _read(model)
    weights = _weights(read, model, params)
    module = ForeignModel(read, weights).eval()
    program = Program()
    with program_guard(program, Program()):
        inputs = [_declared(read, name) for name in module.feeds]
        found = module(*inputs)
    program.for_test = True
    for name, variable in zip(module.fetches, found, strict=True):
        variable.name = name
    return program, list(module.feeds), list(found)


def _declared(read: ProgramFile, name: str) -> Any:
    variable = read.variables[name]
    sizes = [None if size < 0 else size for size in variable.shape]
    return data(name, sizes, FORMATS[variable.kind])


def _read(model: Path) -> ProgramFile:
    try:
        read = parsed(model.read_bytes())
    except FormatError as error:
        raise ProgramError(f"{str(model)!r} is no model of Paddle's: {error}") from None
    used = {op.type for op in read.operations}
    strange = sorted(used - OPERATORS.keys() - {"feed", "fetch"})
    if strange or "fetch" not in used or read.blocks != 1:
        what = f"the operators {', '.join(strange)}" if strange else "no outputs, or several blocks"
        raise ProgramError(
            f"{str(model)!r} is a model of Paddle's own executor with {what}, whose kernels are "
            "not here; build the network with the code that wrote it, load the weights with "
            "fluid.io.load_persistables() or load_vars(), and save it again."
        )
    return read


def _weights(read: ProgramFile, model: Path, params: Path | None) -> dict[str, Tensor]:
    kept = [v.name for v in read.variables.values() if v.persistable and v.holds_numbers]
    used = {n for op in read.operations for names in op.inputs.values() for n in names}
    names = sorted(name for name in kept if name in used)
    if params is None:
        return {name: tensors.read(model.parent / name) for name in names}
    found = tensors.read_all(params)
    if len(found) != len(names):
        raise ProgramError(
            f"{str(params)!r} holds {len(found)} tensors, and the model {str(model)!r} has "
            f"{len(names)}; give the file that was saved with it."
        )
    with torch.no_grad():
        return dict(zip(names, found, strict=True))
