"""``paddle.fluid.contrib.mixed_precision``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.fluid.contrib.mixed_precision.decorator": "decorate OptimizerWithMixedPrecision",
        "paddle.fluid.contrib.mixed_precision.fp16_lists": "AutoMixedPrecisionLists CustomOpLists",
    },
    modules=["decorator", "fp16_lists"],
)
