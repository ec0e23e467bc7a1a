"""``paddle.distributed.cloud_utils``."""

from fleetx.compat.worlds import world_size


def get_trainers_num() -> int:
    """How many workers there are."""
    return world_size()
