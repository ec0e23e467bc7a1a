"""``paddle.tensor.stat``."""

from fleetx.compat.paddle.tensor.creation import numel
from fleetx.compat.paddle.tensor.math import mean, median, std, var

__all__ = ["mean", "median", "numel", "std", "var"]
