"""``paddle.distributed.fleet.utils``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.distributed.fleet.utils.recomputing": "recompute recompute_sequential",
        "hdfs": "HDFSClient LocalFS",
        "paddle.distributed.fleet.utils.ps_util": "DistributedInfer",
    },
    modules=["fs", "hybrid_parallel_util", "log_util", "ps_util"],
)
