"""``paddle.fluid.incubate.fleet.base.fleet_base``."""

from fleetx.compat.distribution import DistributedOptimizer
from fleetx.compat.fleets import Fleet


class Mode:
    """Which kind of fleet it is."""

    TRANSPILER, PSLIB, COLLECTIVE = 1, 2, 3


__all__ = ["DistributedOptimizer", "Fleet", "Mode"]
