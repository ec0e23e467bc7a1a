"""``paddle.incubate.nn``: layers that Paddle computes in one kernel."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.incubate.nn.fused_layers": (
            "FusedLinear FusedDropoutAdd FusedBiasDropoutResidualLayerNorm "
            "FusedMultiHeadAttention FusedFeedForward FusedTransformerEncoderLayer"
        ),
    },
    modules=["functional"],
)
