"""``paddle.distributed.fleet.base.util_factory``."""

from fleetx.roles.worker_util import WorkerUtil as UtilBase
from fleetx.roles.worker_util import util as fleet_util

__all__ = ["UtilBase", "fleet_util"]
