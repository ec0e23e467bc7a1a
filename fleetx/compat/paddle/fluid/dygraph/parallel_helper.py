"""``paddle.fluid.dygraph.parallel_helper``: whether the workers have met."""

from fleetx import roles
from fleetx.compat import worlds


def _is_parallel_ctx_initialized() -> bool:
    return roles.started()


def _is_data_parallel_mode() -> bool:
    return roles.started() and worlds.world_size() > 1
