"""``paddle.distributed.fleet.base.topology``."""

from fleetx.compat.hybrid import HybridCommunicateGroup
from fleetx.compat.hybrid import Topology as CommunicateTopology

__all__ = ["CommunicateTopology", "HybridCommunicateGroup"]
