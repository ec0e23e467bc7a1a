"""Which calls of torch change a tensor in place."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from fleetx.graph.torch_functions import changes_in_place


def writes(func: Callable[..., Any] | str, kwargs: Mapping[str, Any]) -> bool:
    """Whether the call changes its first argument, or the one given as ``out``."""
    name = func if isinstance(func, str) else getattr(func, "__name__", "")
    return changes_in_place(name) or kwargs.get("inplace") is True or kwargs.get("out") is not None


def written(node: fx.Node) -> fx.Node | None:
    """The node whose tensor this node changes."""
    if node.op == "call_module":
        writer = bool(node.meta.get("in_place"))
    else:
        writer = node.op in {"call_function", "call_method"} and writes(node.target, node.kwargs)
    found = node.kwargs.get("out") or (node.args[0] if node.args else None)
    return found if writer and isinstance(found, fx.Node) else None
