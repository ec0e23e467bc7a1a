"""``paddle.nn.initializer``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "fills": "Initializer",
        "paddle.nn.initializer.constant": "Constant",
        "paddle.nn.initializer.normal": "Normal TruncatedNormal",
        "paddle.nn.initializer.uniform": "Uniform",
        "paddle.nn.initializer.xavier": "XavierNormal XavierUniform",
        "paddle.nn.initializer.kaiming": "KaimingNormal KaimingUniform MSRAInitializer",
        "paddle.nn.initializer.assign": "Assign NumpyArrayInitializer",
        "paddle.nn.initializer.others": "Bilinear Dirac Orthogonal calculate_gain",
        "paddle.nn.initializer.lazy_init": "LazyGuard",
        "paddle.fluid.initializer": "set_global_initializer",
    },
    modules=["constant", "normal", "uniform", "xavier", "kaiming", "assign"],
)
