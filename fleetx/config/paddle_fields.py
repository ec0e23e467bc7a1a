"""The order of fields in Paddle's message, by which its files are sorted."""

SCALARS = (
    "mode",
    "amp",
    "recompute",
    "localsgd",
    "dgc",
    "gradient_merge",
    "lars",
    "lamb",
    "pipeline",
    "elastic",
    "auto",
    "a_sync",
    "sync_nccl_allreduce",
    "nccl_comm_num",
    "use_hierarchical_allreduce",
    "hierarchical_allreduce_inter_nranks",
    "sync_batch_norm",
    "fuse_all_reduce_ops",
    "fuse_grad_size_in_MB",
    "fuse_grad_size_in_TFLOPS",
    "cudnn_exhaustive_search",
    "conv_workspace_size_limit",
    "cudnn_batchnorm_spatial_persistent",
    "adaptive_localsgd",
    "fp16_allreduce",
    "sharding",
    "last_comm_group_size_MB",
    "find_unused_parameters",
    "tensor_parallel",
    "without_graph_optimization",
    "fuse_grad_size_in_num",
    "calc_comm_same_stream",
    "asp",
    "fuse_grad_merge",
    "semi_auto",
    "adam_d2sum",
    "auto_search",
    "heter_ccl_mode",
    "is_fl_ps_mode",
    "with_coordinator",
    "qat",
    "split_data",
)
"""Numbered from 1."""

BLOCKS = (
    "recompute_configs",
    "amp_configs",
    "localsgd_configs",
    "gradient_merge_configs",
    "dgc_configs",
    "pipeline_configs",
    "a_sync_configs",
    "lars_configs",
    "lamb_configs",
    "adaptive_localsgd_configs",
    "sharding_configs",
    "hybrid_configs",
    "tensor_parallel_configs",
)
"""Numbered from 101."""

NUMBERS: dict[str, int] = (
    {name: number for number, name in enumerate(SCALARS, 1)}
    | {name: number for number, name in enumerate(BLOCKS, 101)}
    | {"build_strategy": 201, "execution_strategy": 202, "gradient_scale_configs": 203}
)

IDLE: dict[str, dict[str, int]] = {"a_sync_configs": {"use_gpu_graph": 0}}
"""Fields that Paddle writes into every file and that mean nothing here, with their defaults."""

FIRST_OF_OURS = {"scalar": 60, "block": 301}
"""Where names that Paddle does not have begin."""
