"""A graph as a Python function, with the regions in which gradients and formats differ."""

import itertools
import linecache
from collections.abc import Callable
from typing import Any

from torch import fx

from fleetx.record.constants import spell_nested
from fleetx.record.regions import mark_regions
from fleetx.record.replays import with_replays

Code = Callable[..., Any]
"""Takes the module whose parts it uses, then the inputs of the graph."""

_numbers = itertools.count()


def code(graph: fx.Graph, *, compiled: bool = False, depth: int = 0) -> Code:
    """Make a function of a graph; its lines show up in tracebacks.

    Args:
        graph: the operators.
        compiled: whether the function will go through torch.compile.
        depth: how many checkpoints of torch's are around it.
    """
    graph = with_replays(graph, depth, lambda inner, at: code(inner, compiled=compiled, depth=at))
    spell_nested(graph)
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
