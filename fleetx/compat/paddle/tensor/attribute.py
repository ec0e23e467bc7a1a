"""``paddle.tensor.attribute``."""

from fleetx.compat.paddle.tensor.manipulation import shape

__all__ = ["shape"]
