"""``paddle.distributed.fleet.utils.fs``."""

from fleetx.compat.hdfs import (
    ExecuteError,
    FSFileExistsError,
    FSFileNotExistsError,
    HDFSClient,
    LocalFS,
)

__all__ = ["ExecuteError", "FSFileExistsError", "FSFileNotExistsError", "HDFSClient", "LocalFS"]
