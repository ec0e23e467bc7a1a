"""A graph as a Python function, with the regions in which gradients and formats differ."""

import itertools
import linecache
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

Code = Callable[..., Any]
"""Takes the module whose parts it uses, then the inputs of the graph."""

_numbers = itertools.count()


def code(graph: fx.Graph, *, compiled: bool = False) -> Code:
    """Make a function of a graph; its lines show up in tracebacks.

    Args:
        graph: the operators.
        compiled: whether the function will go through torch.compile.
    """
    mark_regions(graph)
    written = graph.python_code("self")
    source = written.src if compiled else _with_quick_lookups(written.src, graph)
    name = f"<program {next(_numbers)}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    scope: dict[str, Any] = dict(written.globals)
    exec(compile(source, name, "exec"), scope)
    made: Code = scope["forward"]
    return made


def _with_quick_lookups(source: str, graph: fx.Graph) -> str:
    """Find submodules in their dictionaries.

    ``self.a.b`` asks a Python function of torch for each step, a thousand times in a forward of
    ResNet50. Where the text is not the expected one, it is left as it is.
    """
    for path in {str(node.target) for node in graph.nodes if node.op == "call_module"}:
        usual, quick = "self", "self"
        for atom in path.split("."):
            usual = f"{usual}.{atom}" if atom.isidentifier() else f'getattr({usual}, "{atom}")'
            quick = f'{quick}._modules["{atom}"]'
        source = source.replace(f" = {usual}(", f" = {quick}(")
    return source


def mark_regions(graph: fx.Graph) -> None:
    """Insert what enters and leaves torch.no_grad() and torch.autocast() as they were recorded."""
    region, token, held = None, None, None
    for node in list(graph.nodes):
        if not node.op.startswith("call") and node.op != "output":
            continue
        inside = node.op != "output" and not node.meta.get("size")
        gradients = not inside or node.meta.get("grad", True)
        wanted = node.meta.get("autocast") if inside else None
        with graph.inserting_before(node):
            if wanted != region:
                token = _switch(graph, token, wanted)
                region = wanted
            if gradients and held is not None:
                graph.call_function(torch._C._set_grad_enabled, (held,))
                held = None
            elif not gradients and held is None:
                held = graph.call_function(hold_gradients)


def hold_gradients() -> bool:
    """Switch gradients off; returns whether they were on, for the end of the region."""
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    return before


def _switch(
    graph: fx.Graph, token: fx.Node | None, wanted: tuple[str, torch.dtype] | None
) -> fx.Node | None:
    if token is not None:
        graph.call_function(_exit_autocast, (token,))
    if wanted is None:
        return None
    return graph.call_function(_enter_autocast, (*wanted, True, True))
