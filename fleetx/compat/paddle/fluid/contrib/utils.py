"""``paddle.fluid.contrib.utils``."""

from fleetx.compat.hdfs import HDFSClient, multi_download, multi_upload

__all__ = ["HDFSClient", "multi_download", "multi_upload"]
