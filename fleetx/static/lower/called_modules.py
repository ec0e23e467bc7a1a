"""Which modules the code of a program calls, for strategies that lay them out."""

from collections.abc import Iterator, Mapping

from torch import fx, nn

from fleetx.torch_internals import parameters_of


def calls(model: nn.Module, graphs: Mapping[str, fx.Graph]) -> dict[str, bool]:
    """Modules that are called -> whether that is once, and nobody else reads their weights.

    Args:
        model: the lowered program.
        graphs: the path before segments -> the graph that calls them. What a segment reads by
            itself, no other part reads.
    """
    nodes = [(prefix, node) for prefix, graph in graphs.items() for node in graph.nodes]
    read = {p for _, node in nodes if node.op == "get_attr" for p in _at(model, node)}
    found = [_path(prefix, node) for prefix, node in nodes if node.op == "call_module"]
    return {
        path: found.count(path) == 1 and read.isdisjoint(model.get_submodule(path).parameters())
        for path in found
        if not path.startswith("stages.") or "segments." in path
    }


def _at(model: nn.Module, node: fx.Node) -> Iterator[nn.Parameter]:
    owner, _, name = str(node.target).rpartition(".")
    found = parameters_of(model.get_submodule(owner)).get(name)
    if found is not None:
        yield found


def _path(prefix: str, node: fx.Node) -> str:
    """Of a module that is called; the segments of a stage lie below it."""
    path = str(node.target)
    return f"{prefix}{path}" if path.startswith("segments.") else path
