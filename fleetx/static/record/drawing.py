"""Programs as text and as graphs."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, fx

from fleetx.record.program_graph import ProgramGraph


def text(program: ProgramGraph) -> str:
    """One line for each operator: what it makes, from what, and where it was written."""
    return "\n".join(_lines(program))


def _lines(program: ProgramGraph) -> Iterator[str]:
    for name, module in program.state.trained().items():
        yield f"parameter {name}: {_kind(module)}"
    for node in program.graph.nodes:
        if node.op == "get_attr":
            continue
        made = f"{program.name_of(node)}: {_kind(node.meta.get('val'))}"
        if node.op == "placeholder":
            yield f"input {made}"
            continue
        device = f" on {node.meta['device']}" if node.meta.get("device") else ""
        line = node.meta.get("line", "").rpartition("/")[2]
        yield f"{made} = {_call(program, node)}{device}" + (f"  # {line}" if line else "")
    if program.objective is not None:
        yield f"minimize {program.objective.loss} over {', '.join(program.objective.trained)}"


def _call(program: ProgramGraph, node: fx.Node) -> str:
    inputs = ", ".join(program.name_of(n) for n in node.all_input_nodes)
    return f"{operator_name(node)}({inputs})"


def operator_name(node: fx.Node) -> str:
    """What a node does, in a word."""
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        sizes = ", ".join(str(size) for size in value.shape)
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_kind(item) for item in value)})"
    return "size" if value is None else type(value).__name__


def dot(program: ProgramGraph) -> str:
    """The operators in the DOT language of graphviz."""
    lines = ["digraph program {", "  node [shape=box, fontname=monospace];"]
    for node in program.graph.nodes:
        label = f"{program.name_of(node)}\\n{operator_name(node)}\\n{_kind(node.meta.get('val'))}"
        shape = {"placeholder": "ellipse", "get_attr": "note"}.get(node.op, "box")
        lines.append(f'  "{node.name}" [label="{label}", shape={shape}];')
        lines += [f'  "{source.name}" -> "{node.name}";' for source in node.all_input_nodes]
    return "\n".join([*lines, "}"]) + "\n"
