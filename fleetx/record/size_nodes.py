"""Sizes of free dimensions, and what Python computes from them, as nodes."""

from typing import Any

import torch
from torch import fx

from fleetx.record.program_graph import ProgramGraph
from fleetx.torch_internals import PythonReferenceAnalysis, symbolic_expression, sympy_interp


def size_node(program: ProgramGraph, size: Any) -> Any:
    """The node that computes a size, or a number where it is known."""
    expression = _own_expression(program, size)
    if expression.is_number:
        return int(expression) if expression.is_Integer else float(expression)
    if expression not in program.sizes:
        free = {symbol: fx.Proxy(_symbol(program, symbol)) for symbol in expression.free_symbols}
        made = free.get(expression)
        if made is None:
            made = sympy_interp(PythonReferenceAnalysis, free, expression)
        node = made.node
        node.meta["size"] = True
        program.sizes[expression] = node
    return program.sizes[expression]


def measure(program: ProgramGraph, node: fx.Node) -> None:
    """Read the sizes behind an operator that finds them when it runs, for whoever needs them."""
    value = node.meta["val"]
    for at, size in enumerate(value.shape):
        symbol = size.node.expr if isinstance(size, torch.SymInt) else None
        if symbol is None or not symbol.is_symbol or symbol in program.shapes.origin:
            continue
        if symbol not in program.sizes:
            found = program.graph.call_function(torch.ops.aten.sym_size.int, (node, at))
            found.meta["size"] = True
            program.sizes[symbol] = found


def _own_expression(program: ProgramGraph, size: Any) -> Any:
    """The size by the input that it comes from, even if it was found equal to that of another.

    ``expr`` tells it by whichever of the equal ones, which a clone for tests may not be fed.
    """
    own = symbolic_expression(size)
    return own if own.free_symbols <= program.shapes.origin.keys() else size.node.expr


def _symbol(program: ProgramGraph, symbol: Any) -> fx.Node:
    """Reads the size of an input, right behind the inputs, so that it is there for everything."""
    if symbol not in program.sizes:
        name, at = program.shapes.origin[symbol]
        inputs = program.inputs()
        with program.graph.inserting_after(list(inputs.values())[-1]):
            node = program.graph.call_function(torch.ops.aten.sym_size.int, (inputs[name], at))
        node.meta["size"] = True
        program.sizes[symbol] = node
    found: fx.Node = program.sizes[symbol]
    return found
