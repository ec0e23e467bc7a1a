"""``paddle.distributed.fleet.base.fleet_base``."""

from fleetx.compat.eager_fleet import Fleet2 as Fleet
from fleetx.compat.eager_fleet import fleet

__all__ = ["Fleet", "fleet"]
