"""``paddle.incubate``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {"averages": "ModelAverage", "wrapped_optimizers": ["LookAhead = LookaheadOptimizer"]},
    modules=["optimizer"],
)
