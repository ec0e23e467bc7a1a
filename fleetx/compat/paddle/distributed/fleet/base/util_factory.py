"""``paddle.distributed.fleet.base.util_factory``."""

from fleetx.roles.worker_util import WorkerUtil as UtilBase

__all__ = ["UtilBase"]
