"""``paddle.core``, by which some scripts reach ``paddle.fluid.core``."""

from fleetx.compat.paddle.fluid.core import *  # noqa: F403  (whatever that has)
