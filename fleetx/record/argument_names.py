"""Names of the arguments of functions, those among them that say whether they train."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

_BUILTIN = {
    "dropout": ("input", "p", "train"),
    "alpha_dropout": ("input", "p", "train"),
    "feature_dropout": ("input", "p", "train"),
    "feature_alpha_dropout": ("input", "p", "train"),
    "batch_norm": ("input", "weight", "bias", "running_mean", "running_var", "training"),
    "rrelu": ("input", "lower", "upper", "training"),
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p"),
    **dict.fromkeys(
        ("lstm", "gru", "rnn_tanh", "rnn_relu"),
        ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train"),
    ),
}
"""Arguments of functions in C++ up to the one that says whether they train."""


@cache
def argument_names(func: Callable[..., Any]) -> tuple[str, ...]:
    """In their order; nothing of functions in C++ that have no switch."""
    try:
        return tuple(inspect.signature(func).parameters)
    except (ValueError, TypeError):
        return _BUILTIN.get(getattr(func, "__name__", ""), ())


def is_switched(func: Callable[..., Any]) -> bool:
    """Whether an argument says if it trains, so that tests can switch that off."""
    return not {"training", "train", "dropout_p"}.isdisjoint(argument_names(func))
