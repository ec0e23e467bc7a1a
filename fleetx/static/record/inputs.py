"""``static.data``: what a program is fed."""

import keyword
from collections.abc import Sequence

import torch
from torch import fx

from fleetx.expected import Kind, a, expect
from fleetx.record.error import ProgramError
from fleetx.record.variable import Variable
from fleetx.static.record.current import default_main_program, record_by_default
from fleetx.static.record.program import Program, dtype_of

TAKEN = frozenset({"self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree"})
"""Names that mean something else in the code that a program becomes."""


_SHAPE = Kind(
    "a list of sizes, with None where the size comes with the data",
    lambda given: isinstance(given, Sequence) and not isinstance(given, str),
)


def data(name: str, shape: Sequence[int | None], dtype: torch.dtype | str = "float32") -> Variable:
    """An input of the program.

    Args:
        name: the key under which it is fed.
        shape: sizes; None or -1 where the size comes with the data.
        dtype: a torch dtype or its name.
    """
    expect("static.data", "name", name, a(str, "a string"))
    expect("static.data", "shape", shape, _SHAPE)
    if not name.isidentifier() or keyword.iskeyword(name) or name in TAKEN:
        raise ProgramError(
            f"static.data() takes a name that could be that of an argument in Python code, and "
            f"{name!r} cannot; choose another, such as 'x_{name}'."
        )
    for size in shape:
        if size is not None and size < -1:
            raise ProgramError(
                f"static.data({name!r}) has the shape {list(shape)}; a size is a number, or None "
                "where it comes with the data."
            )
    record_by_default()
    program = default_main_program()
    if name in program.inputs():
        raise ProgramError(f"the program has an input {name!r} already; choose another name.")
    fake = program.shapes.input(name, shape, dtype_of(dtype))
    node = _placeholder(program, name)
    node.meta.update(val=fake, device=program.device, shape=tuple(shape), stopped=True)
    program.changed()
    return Variable(fake, node, program)


def _placeholder(program: Program, name: str) -> fx.Node:
    """Inputs come before everything else, whenever they are declared."""
    inputs = list(program.inputs().values())
    if inputs:
        with program.graph.inserting_after(inputs[-1]):
            return program.graph.placeholder(name)
    first = next(iter(program.graph.nodes), None)
    if first is None:
        return program.graph.placeholder(name)
    with program.graph.inserting_before(first):
        return program.graph.placeholder(name)
