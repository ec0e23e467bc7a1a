"""Activations that overwrite their input, where nobody else needs it."""

import torch
from torch import fx, nn
from torch.nn import functional as F

from fleetx.torch_internals import BatchNormBase, ConvBase

_FUNCTIONS = {F.relu, torch.relu, "relu"}
_SAFE_MODULES = (ConvBase, BatchNormBase, nn.Linear)
_SAFE = {"conv1d", "conv2d", "conv3d", "linear", "batch_norm", "add", "__add__", "__radd__"}
"""What needs its inputs for the backward pass, but not its output."""


def activate_in_place(graph: fx.Graph, root: nn.Module) -> int:
    """Let ReLU overwrite what it takes; returns how many do. They give the same numbers.

    Nodes are changed, not modules: other calls and other fetches may need what a module takes.
    """
    count = 0
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or len(source.users) > 1 or not _safe(source, root):
            continue
        if _is_relu(node, root):
            node.op, node.target = "call_function", torch.relu_
            node.args, node.kwargs = (source,), {}
            count += 1
    return count


def _is_relu(node: fx.Node, root: nn.Module) -> bool:
    if node.op == "call_module":
        return type(root.get_submodule(str(node.target))) is nn.ReLU
    return node.op in {"call_function", "call_method"} and node.target in _FUNCTIONS


def _safe(node: fx.Node, root: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(root.get_submodule(str(node.target)), _SAFE_MODULES)
    if node.op not in {"call_function", "call_method"}:
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name in _SAFE
