"""``paddle.fluid.dygraph``: eager mode of Paddle 1."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.fluid.dygraph.base": (
            "guard to_variable no_grad grad enabled enable_dygraph disable_dygraph"
        ),
        "paddle.fluid.dygraph.nn": (
            "Conv2D Conv2DTranspose Pool2D Linear FC BatchNorm Embedding LayerNorm Dropout "
            "PRelu GroupNorm"
        ),
        "paddle.fluid.dygraph.layers": "Layer",
        "paddle.fluid.dygraph.container": "Sequential LayerList ParameterList",
        "paddle.fluid.dygraph.parallel": "ParallelEnv prepare_context DataParallel",
        "paddle.fluid.dygraph.checkpoint": "save_dygraph load_dygraph",
        "paddle.jit.api": "declarative=to_static TranslatedLayer ProgramTranslator",
        "paddle.fluid.layers.learning_rate_scheduler": (
            "PiecewiseDecay=piecewise_decay CosineDecay=cosine_decay NoamDecay=noam_decay "
            "ExponentialDecay=exponential_decay NaturalExpDecay=natural_exp_decay "
            "InverseTimeDecay=inverse_time_decay PolynomialDecay=polynomial_decay"
        ),
    },
    modules=["base", "checkpoint", "container", "layers", "nn", "parallel"],
)
