"""``paddle.fluid.incubate.fleet.utils``."""

from fleetx.compat.hdfs import HDFSClient, LocalFS

__all__ = ["HDFSClient", "LocalFS"]
