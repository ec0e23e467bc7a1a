"""Choices of Python code about numbers that come out the same whatever the numbers are."""

import torch
from torch import fx

from fleetx.record.variable import Variable

_BELOW = {"__lt__": True, "__ge__": False, "lt": True, "ge": False}
"""Comparison with a bound -> what it says of numbers that are all below the bound."""


def settled_answer(variable: Variable) -> bool | None:
    """The answer of a comparison with ``torch.rand``, which draws from [0, 1); None: it depends.

    Models drop whole layers by such a line, with a probability that is 0 unless somebody sets it.
    """
    node = variable.node
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name not in _BELOW or len(node.args) != 2:
        return None
    drawn, bound = node.args
    if not isinstance(drawn, fx.Node) or not isinstance(bound, (int, float)):
        return None
    if drawn.target is not torch.rand or 0 < bound < 1:
        return None
    return _BELOW[name] is (bound >= 1)
