"""``paddle.distributed``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.distributed.parallel": (
            "DataParallel ParallelEnv init_parallel_env get_rank get_world_size is_initialized "
            "get_backend is_available destroy_process_group"
        ),
        "paddle.distributed.collective": (
            "ReduceOp all_reduce all_gather all_gather_object broadcast reduce scatter barrier "
            "send recv alltoall reduce_scatter wait new_group get_group split isend irecv "
            "broadcast_object_list"
        ),
        "paddle.distributed.more_collectives": (
            "ParallelMode alltoall_single gather scatter_object_list gloo_barrier "
            "gloo_init_parallel_env gloo_release"
        ),
        "paddle.distributed.spawning": "spawn",
        "paddle.distributed.datasets": "InMemoryDataset QueueDataset",
        "paddle.distributed.auto_parallel": "ProcessMesh shard_tensor shard_op",
        "paddle.distributed.entries": ("CountFilterEntry ProbabilityEntry ShowClickEntry"),
    },
    modules=[
        "auto_parallel",
        "cloud_utils",
        "collective",
        "fleet",
        "launch",
        "launch_ps",
        "parallel",
        "sharding",
        "utils",
    ],
)
