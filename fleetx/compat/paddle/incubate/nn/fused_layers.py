"""Layers of ``paddle.incubate.nn``, with Paddle's parameters and their shapes."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

from typing_extensions import override

from fleetx.compat.fills import Number
from fleetx.compat.paddle.incubate.nn import functional as F
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.nn.layer.transformer import _convert_param_attr_to_list

ONE = Number(1.0)


class FusedLinear(Layer):
    """A linear layer."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: Any = None,
        bias_attr: Any = None,
        transpose_weight: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        size = [out_features, in_features] if transpose_weight else [in_features, out_features]
        self.weight = self.create_parameter(size, weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)
        self.transpose_weight = transpose_weight

    @override
    def forward(self, input: Any) -> Any:
        """``input @ weight + bias``."""
        return F.fused_linear(input, self.weight, self.bias, self.transpose_weight)


class FusedDropoutAdd(Layer):
    """What dropout leaves of the first, and the second."""

    def __init__(self, p: float = 0.5, mode: str = F.UPSCALE, name: str | None = None) -> None:
        super().__init__(name)
        self.p, self.mode = p, mode

    @override
    def forward(self, x: Any, y: Any) -> Any:
        """Their sum."""
        return F.fused_dropout_add(x, y, self.p, self.training, self.mode)


class _Norms(Layer):
    def _norm(self, name: str, size: int, scale: Any = None, bias: Any = None) -> None:
        made = self.create_parameter([size], scale, default_initializer=ONE)
        setattr(self, f"{name}_scale", made)
        setattr(self, f"{name}_bias", self.create_parameter([size], bias, is_bias=True))


class FusedBiasDropoutResidualLayerNorm(_Norms):
    """Layer norm of a residual and of what dropout leaves of an input with a bias."""

    def __init__(
        self,
        embed_dim: int,
        dropout_rate: float = 0.5,
        weight_attr: Any = None,
        bias_attr: Any = None,
        epsilon: float = 1e-05,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.linear_bias = self.create_parameter([embed_dim], bias_attr, is_bias=True)
        self._norm("ln", embed_dim, weight_attr)
        self.dropout_rate, self.epsilon = dropout_rate, epsilon

    @override
    def forward(self, x: Any, residual: Any) -> Any:
        """Their norm."""
        return F.fused_bias_dropout_residual_layer_norm(
            x,
            residual,
            self.linear_bias,
            self.ln_scale,
            self.ln_bias,
            self.dropout_rate,
            self.epsilon,
            self.training,
        )


class FusedMultiHeadAttention(_Norms):
    """Attention of a sequence to itself, with its residual and norm."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout_rate: float = 0.5,
        attn_dropout_rate: float = 0.5,
        kdim: int | None = None,
        vdim: int | None = None,
        normalize_before: bool = False,
        need_weights: bool = False,
        qkv_weight_attr: Any = None,
        qkv_bias_attr: Any = None,
        linear_weight_attr: Any = None,
        linear_bias_attr: Any = None,
        pre_ln_scale_attr: Any = None,
        pre_ln_bias_attr: Any = None,
        ln_scale_attr: Any = None,
        ln_bias_attr: Any = None,
        epsilon: float = 1e-05,
        nranks: int = 1,
        ring_id: int = -1,
        transpose_qkv_wb: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if need_weights or nranks > 1 or {kdim, vdim} - {None, embed_dim}:
            raise ValueError(
                f"FusedMultiHeadAttention(need_weights={need_weights}, nranks={nranks}, kdim="
                f"{kdim}, vdim={vdim}): Paddle attends with one width on one worker and gives no "
                "weights; leave these out, or use nn.MultiHeadAttention."
            )
        head = embed_dim // num_heads
        plain, turned = [3, num_heads, head, embed_dim], [embed_dim, 3 * embed_dim]
        self.qkv_weight = self.create_parameter(
            turned if transpose_qkv_wb else plain, qkv_weight_attr
        )
        biases = [3 * embed_dim] if transpose_qkv_wb else [3, num_heads, head]
        self.qkv_bias = self.create_parameter(biases, qkv_bias_attr, is_bias=True)
        self.linear_weight = self.create_parameter([embed_dim, embed_dim], linear_weight_attr)
        self.linear_bias = self.create_parameter([embed_dim], linear_bias_attr, is_bias=True)
        self.pre_ln_scale = self.pre_ln_bias = self.ln_scale = self.ln_bias = None
        if normalize_before:
            self._norm("pre_ln", embed_dim, pre_ln_scale_attr, pre_ln_bias_attr)
        else:
            self._norm("ln", embed_dim, ln_scale_attr, ln_bias_attr)
        self.normalize_before, self._epsilon = normalize_before, epsilon
        self.dropout_rate, self.attn_dropout_rate = dropout_rate, attn_dropout_rate
        self.num_heads, self.transpose_qkv_wb, self._ring_id = num_heads, transpose_qkv_wb, ring_id

    @override
    def forward(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        attn_mask: Any = None,
        cache: Any = None,
    ) -> Any:
        """Attention to itself: keys and values are those of the query."""
        return F.fused_multi_head_attention(
            query,
            self.qkv_weight,
            self.linear_weight,
            self.normalize_before,
            self.pre_ln_scale,
            self.pre_ln_bias,
            self.ln_scale,
            self.ln_bias,
            self._epsilon,
            self.qkv_bias,
            self.linear_bias,
            cache,
            attn_mask,
            self.dropout_rate,
            self.attn_dropout_rate,
            self._epsilon,
            self.training,
            ring_id=self._ring_id,
            num_heads=self.num_heads,
            transpose_qkv_wb=self.transpose_qkv_wb,
        )


class FusedFeedForward(_Norms):
    """Two linear layers with an activation between them, their residual and norm."""

    def __init__(
        self,
        d_model: int,
        dim_feedforward: int,
        dropout_rate: float = 0.1,
        epsilon: float = 1e-05,
        activation: str = "relu",
        act_dropout_rate: float | None = None,
        normalize_before: bool = False,
        linear1_weight_attr: Any = None,
        linear1_bias_attr: Any = None,
        linear2_weight_attr: Any = None,
        linear2_bias_attr: Any = None,
        ln1_scale_attr: Any = None,
        ln1_bias_attr: Any = None,
        ln2_scale_attr: Any = None,
        ln2_bias_attr: Any = None,
        nranks: int = 1,
        ring_id: int = -1,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        made = self.create_parameter
        self._linear1_weight = made([d_model, dim_feedforward], linear1_weight_attr)
        self._linear1_bias = made([dim_feedforward], linear1_bias_attr, is_bias=True)
        self._linear2_weight = made([dim_feedforward, d_model], linear2_weight_attr)
        self._linear2_bias = made([d_model], linear2_bias_attr, is_bias=True)
        self._ln1_scale = self._ln1_bias = self._ln2_scale = self._ln2_bias = None
        if normalize_before:
            self._norm("_ln1", d_model, ln1_scale_attr, ln1_bias_attr)
        else:
            self._norm("_ln2", d_model, ln2_scale_attr, ln2_bias_attr)
        self._dropout_rate, self._epsilon, self._act_method = dropout_rate, epsilon, activation
        self._act_dropout_rate = dropout_rate if act_dropout_rate is None else act_dropout_rate
        self._normalize_before, self._ring_id = normalize_before, ring_id

    @override
    def forward(self, src: Any, cache: Any = None) -> Any:
        """The second half of a transformer's layer."""
        return F.fused_feedforward(
            src,
            self._linear1_weight,
            self._linear2_weight,
            self._linear1_bias,
            self._linear2_bias,
            self._ln1_scale,
            self._ln1_bias,
            self._ln2_scale,
            self._ln2_bias,
            self._act_dropout_rate,
            self._dropout_rate,
            self._act_method,
            self._epsilon,
            self._epsilon,
            self._normalize_before,
            self.training,
            ring_id=self._ring_id,
        )


class FusedTransformerEncoderLayer(Layer):
    """A layer of a transformer's encoder."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout_rate: float = 0.1,
        activation: str = "relu",
        attn_dropout_rate: float | None = None,
        act_dropout_rate: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ) -> None:
        super().__init__()
        weights = _convert_param_attr_to_list(weight_attr, 2)
        biases = _convert_param_attr_to_list(bias_attr, 2)
        self.fused_attn = FusedMultiHeadAttention(
            d_model,
            nhead,
            dropout_rate,
            dropout_rate if attn_dropout_rate is None else attn_dropout_rate,
            normalize_before=normalize_before,
            qkv_weight_attr=weights[0],
            qkv_bias_attr=biases[0],
            linear_weight_attr=weights[0],
            linear_bias_attr=biases[0],
        )
        self.ffn = FusedFeedForward(
            d_model,
            dim_feedforward,
            dropout_rate,
            activation=activation,
            act_dropout_rate=act_dropout_rate,
            normalize_before=normalize_before,
            linear1_weight_attr=weights[1],
            linear1_bias_attr=biases[1],
            linear2_weight_attr=weights[1],
            linear2_bias_attr=biases[1],
        )

    @override
    def forward(self, src: Any, src_mask: Any = None, cache: Any = None) -> Any:
        """Attention, and what follows it."""
        return self.ffn(self.fused_attn(src, attn_mask=src_mask, cache=cache))
