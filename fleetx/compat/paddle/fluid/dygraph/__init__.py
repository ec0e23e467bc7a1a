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
        "paddle.jit.traced": "TracedLayer",
        "paddle.fluid.dygraph.units": (
            "BackwardStrategy BilinearTensorProduct Conv3D GRUUnit InstanceNorm"
        ),
        "paddle.fluid.dygraph.learning_rate_scheduler": (
            "PiecewiseDecay CosineDecay NoamDecay ExponentialDecay NaturalExpDecay "
            "InverseTimeDecay PolynomialDecay LinearLrWarmup StepDecay MultiStepDecay "
            "LambdaDecay ReduceLROnPlateau"
        ),
        "paddle.amp": "AmpScaler amp_guard",
    },
    modules=[
        *["base", "checkpoint", "container", "layers", "learning_rate_scheduler", "nn"],
        "parallel",
        "parallel_helper",
    ],
)
