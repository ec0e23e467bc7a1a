"""What layers share: activations by name, names of results, small translations."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat import unique_names
from fleetx.compat.notes import note
from fleetx.record.variable import Variable


def leaky(x: Any, alpha: float = 0.02) -> Any:
    """ReLU with a slope below zero."""
    return F.leaky_relu(x, alpha)


def hard_sigmoid(x: Any, slope: float = 0.2, offset: float = 0.5) -> Any:
    """A line between 0 and 1."""
    return torch.clamp(x * slope + offset, 0.0, 1.0)


def swish(x: Any, beta: float = 1.0) -> Any:
    """X times the sigmoid of beta x."""
    return x * torch.sigmoid(x * beta)


def hard_swish(x: Any, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0) -> Any:
    """X times a line between 0 and 1."""
    return x * torch.clamp(x + offset, 0.0, threshold) / scale


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "elu": F.elu,
    "exp": torch.exp,
    "floor": torch.floor,
    "gelu": F.gelu,
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": hard_swish,
    "leaky_relu": leaky,
    "log": torch.log,
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "relu6": F.relu6,
    "round": torch.round,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "sin": torch.sin,
    "softmax": lambda x: F.softmax(x, -1),
    "softplus": F.softplus,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "swish": swish,
    "tanh": torch.tanh,
}
"""What ``act=`` names."""


def activated(x: Any, act: Any) -> Any:
    """A value behind the activation that ``act=`` names."""
    if act is None:
        return x
    kind = act["type"] if isinstance(act, dict) else act
    if kind not in ACTIVATIONS:
        raise ValueError(f"act={act!r} names no activation; one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[kind](x)


def named(x: Any, name: str | None, steps: int = 1) -> Any:
    """A result under the name that Paddle gives it: that of the layer, and a count of its steps."""
    if name is not None and isinstance(x, Variable):
        found = [unique_names.generate(f"{name}.tmp") for _ in range(steps)][-1]
        if x.node.op not in {"placeholder", "get_attr"} and found not in x.program.names:
            x.name = found
    return x


def scalar(x: Any) -> Any:
    """Paddle's numbers have the shape [1]."""
    return torch.reshape(x, (1,)) if x.dim() == 0 else x


def tuned(**options: Any) -> None:
    """Say once that settings of Paddle's own kernels have nothing to set here."""
    for option, value in options.items():
        if value:
            note(option, "chose a kernel of Paddle's, and torch chooses its own")


def refused(call: str, option: str, why: str, instead: str) -> Exception:
    """The error for a keyword that cannot be obeyed."""
    return NotImplementedError(f"{call}({option}) {why}; {instead}.")


def pair(value: Any, count: int = 2) -> tuple[int, ...]:
    """One number for each dimension."""
    if isinstance(value, (list, tuple)):
        found = tuple(int(entry) for entry in value)
        return found if len(found) == count else found * count
    return (int(value),) * count


def axes_of(dim: Any) -> Any:
    """Dimensions as torch takes them; None for all."""
    if dim is None or dim in ([], ()):
        return None
    return tuple(int(at) for at in dim) if isinstance(dim, (list, tuple)) else int(dim)
