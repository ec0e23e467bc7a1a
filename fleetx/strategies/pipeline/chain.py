"""The forward of nested ``nn.Sequential``s, which is known from their structure alone."""

from collections import Counter
from collections.abc import Callable

from torch import fx, nn

from fleetx.strategies.pipeline.refusal import TraceError

_VIEWS = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout)
"""Layers that may return what they were given."""


def chained(model: nn.Module, whole: Callable[[str, nn.Module], bool]) -> fx.Graph:
    """The layers of a chain one after the other.

    Args:
        model: the outermost chain.
        whole: name and module -> whether a call of that submodule is one node.

    Raises:
        TraceError: The model, or a submodule that shall not be one node, is no chain.
    """
    graph, counts = fx.Graph(), Counter[str]()
    names = {module: name for name, module in model.named_modules()}

    def call(module: nn.Module, value: fx.Node, calls: dict[str, tuple[str, type]]) -> fx.Node:
        path = names[module]
        if path:
            number, counts[path] = counts[path], counts[path] + 1
            calls = {**calls, f"{path}@{number}" if number else path: (path, type(module))}
        if not path or not whole(path, module):
            for child in _chain(module, path):  # one that occurs twice, twice
                value = call(child, value, calls)
            return value
        made = graph.call_module(path, (value,))
        made.meta["nn_module_stack"] = calls
        made.meta["in_place"] = getattr(module, "inplace", False) is True
        made.meta["view"] = isinstance(module, _VIEWS)
        return made

    graph.output(call(model, graph.placeholder("input"), {}))
    return graph


def _chain(module: nn.Module, path: str) -> nn.Sequential:
    """The module, which must be a chain."""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return module
    what = f"{path!r}, a {type(module).__name__}," if path else f"a {type(module).__name__}"
    raise TraceError(
        f"no sample of the inputs was given, and the forward of {what} is code that can only be "
        "followed for inputs like some; without them, nn.Sequential alone is cut. Call "
        "fleet.distributed_model(model, sample=inputs): two rows of a batch are enough."
    )
