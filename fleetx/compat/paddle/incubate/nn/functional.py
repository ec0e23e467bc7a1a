"""``paddle.incubate.nn.functional``: what Paddle computes in one kernel, and torch in several."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.paddle.nn.functional.activation import ACTIVATIONS
from fleetx.compat.paddle.nn.functional.common import dropout
from fleetx.compat.paddle.nn.layer.transformer import _convert_attention_mask
from fleetx.compat.tensors import op

UPSCALE = "upscale_in_train"


@op
def fused_matmul_bias(
    x: Any,
    y: Any,
    bias: Any = None,
    transpose_x: bool = False,
    transpose_y: bool = False,
    name: str | None = None,
) -> Any:
    """``x @ y + bias``."""
    left = torch.transpose(x, -2, -1) if transpose_x else x
    made = torch.matmul(left, torch.transpose(y, -2, -1) if transpose_y else y)
    return made if bias is None else made + bias


def fused_linear(
    x: Any, weight: Any, bias: Any = None, transpose_weight: bool = False, name: str | None = None
) -> Any:
    """``x @ weight + bias``."""
    return fused_matmul_bias(x, weight, bias, False, transpose_weight)


def fused_linear_activation(
    x: Any,
    y: Any,
    bias: Any = None,
    trans_x: bool = False,
    trans_y: bool = False,
    activation: str | None = None,
) -> Any:
    """The same behind an activation, by its name."""
    made = fused_matmul_bias(x, y, bias, trans_x, trans_y)
    return made if activation in {None, "none"} else ACTIVATIONS[str(activation)](made)


@op
def fused_dropout_add(
    x: Any,
    y: Any,
    p: float = 0.5,
    training: bool = True,
    mode: str = UPSCALE,
    name: str | None = None,
) -> Any:
    """The second, and what is left of the first."""
    return dropout(x, p, training=training, mode=mode) + y


def _normalised(x: Any, scale: Any, bias: Any, epsilon: float) -> Any:
    return F.layer_norm(x, (x.shape[-1],), scale, bias, epsilon)


@op
def fused_layer_norm(
    x: Any,
    norm_weight: Any,
    norm_bias: Any,
    epsilon: float,
    residual_alpha: float = 1.0,
    begin_norm_axis: int = 1,
    bias: Any = None,
    residual: Any = None,
    quant_scale: float = -1,
    **rounding: Any,
) -> Any:
    """Layer norm of the sum of an input, its bias and a residual, from an axis on."""
    if quant_scale > 0:
        raise ValueError("fused_layer_norm(quant_scale=…) gives 8-bit numbers; leave it at -1.")
    x = x if bias is None else x + bias
    x = x if residual is None else x + residual_alpha * residual
    sizes = tuple(x.shape[begin_norm_axis:])
    made = F.layer_norm(x, sizes, norm_weight.reshape(sizes), norm_bias.reshape(sizes), epsilon)
    return made if residual is None else (made, x)


@op
def fused_bias_dropout_residual_layer_norm(
    x: Any,
    residual: Any,
    bias: Any = None,
    ln_scale: Any = None,
    ln_bias: Any = None,
    dropout_rate: float = 0.5,
    ln_epsilon: float = 1e-05,
    training: bool = True,
    mode: str = UPSCALE,
    name: str | None = None,
) -> Any:
    """Layer norm of a residual and of what dropout leaves of an input with its bias."""
    made = x if bias is None else x + bias
    made = residual + dropout(made, dropout_rate, training=training, mode=mode)
    return _normalised(made, ln_scale, ln_bias, ln_epsilon)


@op
def fused_feedforward(
    x: Any,
    linear1_weight: Any,
    linear2_weight: Any,
    linear1_bias: Any = None,
    linear2_bias: Any = None,
    ln1_scale: Any = None,
    ln1_bias: Any = None,
    ln2_scale: Any = None,
    ln2_bias: Any = None,
    dropout1_rate: float = 0.5,
    dropout2_rate: float = 0.5,
    activation: str = "relu",
    ln1_epsilon: float = 1e-05,
    ln2_epsilon: float = 1e-05,
    pre_layer_norm: bool = False,
    training: bool = True,
    mode: str = UPSCALE,
    ring_id: int = -1,
    add_residual: bool = True,
    name: str | None = None,
) -> Any:
    """The second half of a transformer's layer."""
    _refuse_ring(ring_id)
    inner = _normalised(x, ln1_scale, ln1_bias, ln1_epsilon) if pre_layer_norm else x
    inner = ACTIVATIONS[activation](fused_matmul_bias(inner, linear1_weight, linear1_bias))
    inner = dropout(inner, dropout1_rate, training=training, mode=mode)
    made = fused_matmul_bias(inner, linear2_weight, linear2_bias)
    made = dropout(made, dropout2_rate, training=training, mode=mode)
    made = x + made if add_residual else made
    return made if pre_layer_norm else _normalised(made, ln2_scale, ln2_bias, ln2_epsilon)


@op
def fused_multi_head_attention(
    x: Any,
    qkv_weight: Any,
    linear_weight: Any,
    pre_layer_norm: bool = False,
    pre_ln_scale: Any = None,
    pre_ln_bias: Any = None,
    ln_scale: Any = None,
    ln_bias: Any = None,
    pre_ln_epsilon: float = 1e-05,
    qkv_bias: Any = None,
    linear_bias: Any = None,
    cache_kv: Any = None,
    attn_mask: Any = None,
    dropout_rate: float = 0.5,
    attn_dropout_rate: float = 0.5,
    ln_epsilon: float = 1e-05,
    training: bool = True,
    mode: str = UPSCALE,
    ring_id: int = -1,
    add_residual: bool = True,
    num_heads: int = -1,
    transpose_qkv_wb: bool = False,
    name: str | None = None,
) -> Any:
    """The first half: attention of [batch, length, width] to itself.

    The weight of queries, keys and values is [3, heads, width of a head, width], or
    [width, 3 * width] with ``transpose_qkv_wb``.
    """
    _refuse_ring(ring_id)
    if cache_kv is not None:
        raise ValueError("fused_multi_head_attention(cache_kv=…) is for generation; leave it out.")
    inner = _normalised(x, pre_ln_scale, pre_ln_bias, pre_ln_epsilon) if pre_layer_norm else x
    query, key, value = _parted(inner, qkv_weight, qkv_bias, num_heads, transpose_qkv_wb)
    scores = torch.matmul(query, torch.transpose(key, -2, -1)) * query.shape[-1] ** -0.5
    mask = _convert_attention_mask(attn_mask, scores.dtype)
    scores = scores if mask is None else scores + mask
    weights = dropout(torch.softmax(scores, -1), attn_dropout_rate, training=training, mode=mode)
    joined = torch.flatten(torch.transpose(torch.matmul(weights, value), 1, 2), 2)
    made = fused_matmul_bias(joined, linear_weight, linear_bias)
    made = dropout(made, dropout_rate, training=training, mode=mode)
    made = x + made if add_residual else made
    return made if pre_layer_norm else _normalised(made, ln_scale, ln_bias, ln_epsilon)


def _parted(x: Any, weight: Any, bias: Any, heads: int, turned: bool) -> list[Any]:
    """Queries, keys and values as [batch, heads, length, width of a head]."""
    if turned:
        made = fused_matmul_bias(x, weight, bias)
        parts = torch.unflatten(made, -1, (3, heads, -1))
    else:
        parts = torch.einsum("bld,nhed->blnhe", x, weight)
        parts = parts if bias is None else parts + bias
    return [torch.transpose(part, 1, 2) for part in torch.unbind(parts, 2)]


def _refuse_ring(ring_id: int) -> None:
    if ring_id >= 0:
        raise ValueError(
            f"ring_id={ring_id} cuts a fused layer over workers; use ColumnParallelLinear and "
            "RowParallelLinear of fleet.meta_parallel for that."
        )
