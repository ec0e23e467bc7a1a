"""``paddle.nn.functional.distance``, and what attention is made of."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.tensors import op


@op
def pairwise_distance(
    x: Any,
    y: Any,
    p: float = 2.0,
    epsilon: float = 1e-6,
    keepdim: bool = False,
    name: str | None = None,
) -> Any:
    """How far vectors are from each other."""
    return F.pairwise_distance(x, y, p, epsilon, keepdim)


@op
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    training: bool = True,
    name: str | None = None,
) -> Any:
    """Attention over tensors of shape [batch, length, heads, size]."""
    query, key, value = (torch.transpose(x, 1, 2) for x in (query, key, value))
    dropped = dropout_p if training else 0.0
    made = F.scaled_dot_product_attention(query, key, value, attn_mask, dropped, is_causal)
    return torch.transpose(made, 1, 2)
