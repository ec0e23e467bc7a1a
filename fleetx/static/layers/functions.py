"""Activations, dropout and losses in the spelling of programs."""

from torch import Tensor, nn
from torch.nn import functional as F

from fleetx.record.error import ProgramError
from fleetx.record.variable import Variable, as_variable
from fleetx.static.layers.parameters import Attr, layer, one_of, size_of


def prelu(
    x: Tensor,
    mode: str = "all",
    weight_attr: Attr = None,
    name: str | None = None,
    *,
    param_attr: Attr = None,
) -> Variable:
    """ReLU whose slope below zero is learnt: one ("all"), or one for each channel ("channel")."""
    if mode not in {"all", "channel"}:
        raise ProgramError(f"prelu has the modes 'all' and 'channel', got {mode!r}")
    count = 1 if mode == "all" else size_of(x, 1)
    start = one_of(weight_attr=weight_attr, param_attr=param_attr)
    module = layer("prelu", lambda: nn.PReLU(count), name=name, weight=start)
    return as_variable(module(x), "a layer")


def dropout(x: Tensor, dropout_prob: float = 0.5, is_test: bool = False) -> Variable:
    """Numbers are dropped at random, and the rest scaled up; a clone for tests drops nothing."""
    return as_variable(F.dropout(x, dropout_prob, training=not is_test), "dropout()")


def cross_entropy(input: Tensor, label: Tensor) -> Variable:
    """Minus the logarithm of the probability of each label: [N, classes], [N, 1] -> [N, 1].

    It takes probabilities, such as ``fc(…, activation="softmax")`` gives; for logits use
    ``torch.nn.functional.cross_entropy``, which is steadier.
    """
    label = label.unsqueeze(-1) if label.dim() < input.dim() else label
    return as_variable(-input.gather(-1, label).log(), "cross_entropy()")
