"""The layers of BERT and of the Transformer: attention, then two linear layers, norms behind."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override


class Attention(nn.Module):
    """One linear layer for each of the four roles, which tensor parallelism cuts by name."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width) for _ in range(4)
        )

    @override
    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None, *, is_causal: bool = False
    ) -> Tensor:
        """Mix positions of ``memory`` into those of ``x``; ``mask`` says which may be seen."""
        q, k, v = (
            layer(source).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for layer, source in (
                (self.q_proj, x),
                (self.k_proj, memory),
                (self.v_proj, memory),
            )
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Widen, bend, narrow."""

    def __init__(self, width: int, inner: int, *, smooth: bool) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(width, inner), nn.Linear(inner, width)
        self.activation = nn.GELU() if smooth else nn.ReLU()

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Each position by itself."""
        return self.down_proj(self.activation(self.up_proj(x)))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Attention among all positions, and an MLP."""

    def __init__(self, width: int, heads: int, inner: int, *, dropout: float, smooth: bool) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads), nn.LayerNorm(width)
        self.mlp, self.norm2 = MLP(width, inner, smooth=smooth), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    @override
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """One layer."""
        x = self.norm1(x + self.dropout(self.attention(x, x, mask)))
        return self.norm2(x + self.dropout(self.mlp(x)))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention to earlier positions, attention to the source, and an MLP."""

    def __init__(self, width: int, heads: int, inner: int, *, dropout: float) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads), nn.LayerNorm(width)
        self.cross, self.norm2 = Attention(width, heads), nn.LayerNorm(width)
        self.mlp, self.norm3 = MLP(width, inner, smooth=False), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    @override
    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """One layer."""
        x = self.norm1(x + self.dropout(self.attention(x, x, None, is_causal=True)))
        x = self.norm2(x + self.dropout(self.cross(x, memory, mask)))
        return self.norm3(x + self.dropout(self.mlp(x)))  # type: ignore[no-any-return]


def visible(tokens: Tensor, padding: int) -> Tensor:
    """Which positions of a batch may be seen, in the shape that attention wants."""
    return (tokens != padding)[:, None, None, :]


def normal(module: nn.Module, std: float) -> None:
    """Begin with small weights."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            with torch.no_grad():
                part.weight.normal_(0, std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
