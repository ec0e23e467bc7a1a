"""``paddle.incubate.optimizer``."""

from fleetx.compat.averages import ModelAverage
from fleetx.compat.made_optimizers import LarsMomentum as LarsMomentumOptimizer
from fleetx.compat.wrapped_optimizers import LookAhead

__all__ = ["LarsMomentumOptimizer", "LookAhead", "ModelAverage"]
