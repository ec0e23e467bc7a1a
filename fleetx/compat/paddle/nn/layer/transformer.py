"""``paddle.nn.layer.transformer``: attention and the layers of transformers."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

import copy
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import override

from fleetx.compat.paddle.nn.functional import common as F
from fleetx.compat.paddle.nn.functional.activation import ACTIVATIONS
from fleetx.compat.paddle.nn.layer.common import Dropout, Linear
from fleetx.compat.paddle.nn.layer.container import LayerList
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.nn.layer.norm import LayerNorm
from fleetx.compat.parameters import ParamAttr


def _convert_param_attr_to_list(param_attr: Any, n: int) -> list[Any]:
    """What each of n parameters is given; names are numbered."""
    if isinstance(param_attr, (list, tuple)):
        if len(param_attr) != n:
            raise ValueError(f"{n} parameters were given {len(param_attr)} ParamAttr; give {n}.")
        return [attr if isinstance(attr, bool) else ParamAttr.of(attr) for attr in param_attr]
    if isinstance(param_attr, bool):
        return [param_attr] * n
    given = ParamAttr.of(param_attr)
    found = [copy.copy(given) for _ in range(n)]
    for at, attr in enumerate(found):
        if attr is not None and attr.name:
            attr.name = f"{attr.name}_{at}"
    return found


def _convert_attention_mask(attn_mask: Any, dtype: Any) -> Any:
    """A mask to be added: of a mask of booleans or numbers, what is off becomes very negative."""
    if attn_mask is None or attn_mask.is_floating_point():
        return None if attn_mask is None else torch.Tensor.to(attn_mask, dtype)
    return (torch.Tensor.to(attn_mask, dtype) - 1.0) * 1e9


class MultiHeadAttention(Layer):
    """Attention of several heads."""

    Cache = namedtuple("Cache", ["k", "v"])
    StaticCache = namedtuple("StaticCache", ["k", "v"])

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        kdim: int | None = None,
        vdim: int | None = None,
        need_weights: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} does not divide into num_heads={num_heads}.")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.dropout, self.need_weights = dropout, need_weights
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.q_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)
        self.k_proj = Linear(self.kdim, embed_dim, weight_attr, bias_attr)
        self.v_proj = Linear(self.vdim, embed_dim, weight_attr, bias_attr)
        self.out_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)

    def _heads(self, x: Any) -> Any:
        parted = torch.reshape(x, (x.size(0), x.size(1), self.num_heads, self.head_dim))
        return torch.permute(parted, (0, 2, 1, 3))

    def compute_kv(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Keys and values of all heads."""
        return self._heads(self.k_proj(key)), self._heads(self.v_proj(value))

    def gen_cache(self, key: Any, value: Any = None, type: Any = None) -> Any:
        """What attention remembers between steps."""
        if type is MultiHeadAttention.StaticCache:
            return self.StaticCache(*self.compute_kv(key, key if value is None else value))
        if value is not None:
            return self.Cache(key, value)
        sizes = (key.size(0), self.num_heads, 0, self.head_dim)
        empty = torch.Tensor.new_zeros(key, sizes)
        return self.Cache(empty, empty)

    @override
    def forward(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        attn_mask: Any = None,
        cache: Any = None,
    ) -> Any:
        key = query if key is None else key
        value = key if value is None else value
        q = self._heads(self.q_proj(query))
        if isinstance(cache, self.StaticCache):
            k, v = cache.k, cache.v
        else:
            k, v = self.compute_kv(key, value)
        if isinstance(cache, self.Cache):
            k, v = torch.cat([cache.k, k], 2), torch.cat([cache.v, v], 2)
            cache = self.Cache(k, v)
        product = torch.matmul(q * self.head_dim**-0.5, torch.transpose(k, -1, -2))
        if attn_mask is not None:
            product = product + _convert_attention_mask(attn_mask, product.dtype)
        weights = torch.softmax(product, -1)
        if self.dropout:
            weights = F.dropout(weights, self.dropout, training=self.training)
        found = torch.permute(torch.matmul(weights, v), (0, 2, 1, 3))
        out = self.out_proj(torch.reshape(found, (found.size(0), found.size(1), self.embed_dim)))
        made = [out, *([weights] if self.need_weights else []), *([cache] if cache else [])]
        return out if len(made) == 1 else tuple(made)


class TransformerEncoderLayer(Layer):
    """Attention and a feed-forward net, each with dropout, a shortcut and a norm."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float = 0.1,
        activation: str = "relu",
        attn_dropout: float | None = None,
        act_dropout: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
        layer_norm_eps: float = 1e-05,
    ) -> None:
        given = {name: value for name, value in locals().items() if name[0] != "_"}
        super().__init__()
        self._config = {k: v for k, v in given.items() if k != "self"}
        self.normalize_before = normalize_before
        weights, biases = (_convert_param_attr_to_list(a, 2) for a in (weight_attr, bias_attr))
        attention = dropout if attn_dropout is None else attn_dropout
        self.self_attn = MultiHeadAttention(
            d_model, nhead, dropout=attention, weight_attr=weights[0], bias_attr=biases[0]
        )
        self.linear1 = Linear(d_model, dim_feedforward, weights[1], biases[1])
        self.dropout = Dropout(dropout if act_dropout is None else act_dropout)
        self.linear2 = Linear(dim_feedforward, d_model, weights[1], biases[1])
        self.norm1 = LayerNorm(d_model, layer_norm_eps)
        self.norm2 = LayerNorm(d_model, layer_norm_eps)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation = ACTIVATIONS[activation]

    @override
    def forward(self, src: Any, src_mask: Any = None, cache: Any = None) -> Any:
        rest = src
        src = self.norm1(src) if self.normalize_before else src
        if cache is None:
            src = self.self_attn(src, src, src, src_mask)
        else:
            src, cache = self.self_attn(src, src, src, src_mask, cache)
        src = rest + self.dropout1(src)
        src = src if self.normalize_before else self.norm1(src)
        rest = src
        src = self.norm2(src) if self.normalize_before else src
        src = self.linear2(self.dropout(self.activation(self.linear1(src))))
        src = rest + self.dropout2(src)
        src = src if self.normalize_before else self.norm2(src)
        return src if cache is None else (src, cache)

    def gen_cache(self, src: Any) -> Any:
        """What it remembers between steps."""
        return self.self_attn.gen_cache(src, type=MultiHeadAttention.Cache)


class TransformerEncoder(Layer):
    """Layers of an encoder above each other; the first is the one that is given."""

    def __init__(self, encoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__()
        self.layers = LayerList(
            [encoder_layer]
            + [type(encoder_layer)(**encoder_layer._config) for _ in range(num_layers - 1)]
        )
        self.num_layers, self.norm = num_layers, norm

    @override
    def forward(self, src: Any, src_mask: Any = None, cache: Any = None) -> Any:
        new = []
        for at, layer in enumerate(self.layers):
            if cache is None:
                src = layer(src, src_mask=src_mask)
            else:
                src, kept = layer(src, src_mask=src_mask, cache=cache[at])
                new.append(kept)
        src = src if self.norm is None else self.norm(src)
        return src if cache is None else (src, new)

    def gen_cache(self, src: Any) -> list[Any]:
        """What it remembers between steps."""
        return [layer.gen_cache(src) for layer in self.layers]


class TransformerDecoderLayer(Layer):
    """Attention to itself, to an encoder's output, and a feed-forward net."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float = 0.1,
        activation: str = "relu",
        attn_dropout: float | None = None,
        act_dropout: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
        layer_norm_eps: float = 1e-05,
    ) -> None:
        given = {name: value for name, value in locals().items() if name[0] != "_"}
        super().__init__()
        self._config = {k: v for k, v in given.items() if k != "self"}
        self.normalize_before = normalize_before
        weights, biases = (_convert_param_attr_to_list(a, 3) for a in (weight_attr, bias_attr))
        attention = dropout if attn_dropout is None else attn_dropout
        self.self_attn = MultiHeadAttention(
            d_model, nhead, dropout=attention, weight_attr=weights[0], bias_attr=biases[0]
        )
        self.cross_attn = MultiHeadAttention(
            d_model, nhead, dropout=attention, weight_attr=weights[1], bias_attr=biases[1]
        )
        self.linear1 = Linear(d_model, dim_feedforward, weights[2], biases[2])
        self.dropout = Dropout(dropout if act_dropout is None else act_dropout)
        self.linear2 = Linear(dim_feedforward, d_model, weights[2], biases[2])
        self.norm1 = LayerNorm(d_model, layer_norm_eps)
        self.norm2 = LayerNorm(d_model, layer_norm_eps)
        self.norm3 = LayerNorm(d_model, layer_norm_eps)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.dropout3 = Dropout(dropout)
        self.activation = ACTIVATIONS[activation]

    def _before(self, norm: Any, x: Any) -> Any:
        return norm(x) if self.normalize_before else x

    def _after(self, norm: Any, x: Any) -> Any:
        return x if self.normalize_before else norm(x)

    @override
    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        cache: Any = None,
    ) -> Any:
        x = self._before(self.norm1, tgt)
        if cache is None:
            x = self.self_attn(x, x, x, tgt_mask)
        else:
            x, kept = self.self_attn(x, x, x, tgt_mask, cache[0])
        tgt = self._after(self.norm1, tgt + self.dropout1(x))
        x = self._before(self.norm2, tgt)
        if cache is None:
            x = self.cross_attn(x, memory, memory, memory_mask)
        else:
            x, known = self.cross_attn(x, memory, memory, memory_mask, cache[1])
        tgt = self._after(self.norm2, tgt + self.dropout2(x))
        x = self._before(self.norm3, tgt)
        x = self.linear2(self.dropout(self.activation(self.linear1(x))))
        tgt = self._after(self.norm3, tgt + self.dropout3(x))
        return tgt if cache is None else (tgt, (kept, known))

    def gen_cache(self, memory: Any) -> Any:
        """What it remembers between steps."""
        return (
            self.self_attn.gen_cache(memory, type=MultiHeadAttention.Cache),
            self.cross_attn.gen_cache(memory, memory, type=MultiHeadAttention.StaticCache),
        )


class TransformerDecoder(Layer):
    """Layers of a decoder above each other; the first is the one that is given."""

    def __init__(self, decoder_layer: Any, num_layers: int, norm: Any = None) -> None:
        super().__init__()
        self.layers = LayerList(
            [decoder_layer]
            + [type(decoder_layer)(**decoder_layer._config) for _ in range(num_layers - 1)]
        )
        self.num_layers, self.norm = num_layers, norm

    @override
    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        cache: Any = None,
    ) -> Any:
        new = []
        for at, layer in enumerate(self.layers):
            if cache is None:
                tgt = layer(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask)
            else:
                tgt, kept = layer(tgt, memory, tgt_mask, memory_mask, cache[at])
                new.append(kept)
        tgt = tgt if self.norm is None else self.norm(tgt)
        return tgt if cache is None else (tgt, new)

    def gen_cache(self, memory: Any, do_zip: bool = False) -> Any:
        """What it remembers between steps."""
        found = [layer.gen_cache(memory) for layer in self.layers]
        return list(zip(*found, strict=True)) if do_zip else found


class Transformer(Layer):
    """An encoder and a decoder."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        attn_dropout: float | None = None,
        act_dropout: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
    ) -> None:
        super().__init__()
        shared = (dropout, activation, attn_dropout, act_dropout, normalize_before)
        common: Sequence[Any] = (d_model, nhead, dim_feedforward, *shared, weight_attr, bias_attr)
        if custom_encoder is None:
            first = TransformerEncoderLayer(*common)
            norm = LayerNorm(d_model) if normalize_before else None
            custom_encoder = TransformerEncoder(first, num_encoder_layers, norm)
        if custom_decoder is None:
            lead = TransformerDecoderLayer(*common)
            norm = LayerNorm(d_model) if normalize_before else None
            custom_decoder = TransformerDecoder(lead, num_decoder_layers, norm)
        self.encoder, self.decoder = custom_encoder, custom_decoder
        self.d_model, self.nhead = d_model, nhead

    @override
    def forward(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
    ) -> Any:
        return self.decoder(tgt, self.encoder(src, src_mask), tgt_mask, memory_mask)

    def generate_square_subsequent_mask(self, length: int) -> Any:
        """A mask that hides what comes later."""
        return torch.triu(torch.full((length, length), float("-inf")), 1)
