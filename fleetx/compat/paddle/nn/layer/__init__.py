"""``paddle.nn.layer``: layers by kinds."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {"paddle.nn.layer.layers": "Layer"},
    modules=[
        "activation",
        "common",
        "container",
        "conv",
        "layers",
        "loss",
        "norm",
        "pooling",
        "rnn",
        "transformer",
    ],
)
