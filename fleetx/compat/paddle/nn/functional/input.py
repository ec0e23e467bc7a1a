"""``paddle.nn.functional.input``."""

from fleetx.compat.paddle.nn.functional.common import embedding, one_hot

__all__ = ["embedding", "one_hot"]
