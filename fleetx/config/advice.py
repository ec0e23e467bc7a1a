"""What is said of an option that nothing in a plan obeys: what it would do, and what does it here.

Options of Fleet for which there is no strategy are known by name, so that files of Paddle load; set
to anything but their default they are refused, with these words.
"""

_BY_AUTO = (
    "it lets Paddle choose how tensors are laid out. Here strategy.auto = True chooses all of it."
)

_CHOSEN_LATE = (
    "the strategies are chosen by fleet.distributed_model(model, sample=inputs), and this came "
    "before it or without it. Call it first, or let `fleetx plan train.py` choose beforehand, and "
    "load the file that it writes. For static programs set the flags by hand: fleet.plan(module, "
    "...) shows the best ones for the module from which a program is made."
)

_BUCKETS = "the size of a bucket of gradients is counted in bytes here: set fuse_grad_size_in_MB."

_PROGRAMS = (
    "it is about static programs, and this job trains a module. Train a program "
    "(fleet.distributed_optimizer(static.Optimizer(...)).minimize(loss)), or use "
)

ADVICE: dict[str, str] = {
    "adam_d2sum": "it is another rule of updates; pass fleet.distributed_optimizer() the optimizer "
    "that moves parameters as you want.",
    "asp": "it prunes weights to a sparse pattern, which is not built; prune with "
    "torch.nn.utils.prune before fleet.distributed_model().",
    "auto": _CHOSEN_LATE,
    "auto_configs": "it tells strategy.auto what it may choose, and that is off. Set strategy.auto "
    "= True.",
    "auto_search": _BY_AUTO,
    "build_strategy": _PROGRAMS + "strategy.compile, which fuses the operators of a module.",
    "calc_comm_same_stream": "torch exchanges gradients on streams of its own, beside backward.",
    "conv_workspace_size_limit": "torch chooses the workspaces of convolutions by itself.",
    "cudnn_batchnorm_spatial_persistent": "torch chooses the kernels of batch norms by itself.",
    "cudnn_exhaustive_search": "torch has a switch of its own for it: set "
    "torch.backends.cudnn.benchmark = True in the script.",
    "elastic": "a change of machines is up to the launcher; start the script with fleetrun "
    "--nnodes 2:4 --max_restart 3, and let it begin with its last checkpoint.",
    "execution_strategy": _PROGRAMS + "torch's own settings, such as torch.set_num_threads().",
    "fuse_grad_merge": "gradients are added up in place by strategy.gradient_merge as it is.",
    "fuse_grad_size_in_TFLOPS": _BUCKETS,
    "fuse_grad_size_in_num": _BUCKETS,
    "gradient_scale_configs": "gradients become their mean over the workers. For their sum, "
    "multiply the loss by fleet.data_num().",
    "heter_ccl_mode": "all workers of a job compute on devices of one kind.",
    "hybrid_configs": "the axes of a mesh are pp, dp, sharding and mp. For long sequences use "
    "mp_degree with strategy.tensor_parallel, and strategy.recompute.",
    "is_fl_ps_mode": "there is no federated learning here.",
    "last_comm_group_size_MB": _BUCKETS,
    "mode": "a collective job has no servers. Start it with fleetrun --server_num 1 --worker_num 2 "
    "and call fleet.init() without is_collective=True; the mode then follows by itself.",
    "qat": "it trains for quantised numbers, which is not built; prepare the model with torchao or "
    "torch.ao.quantization before fleet.distributed_model().",
    "semi_auto": _BY_AUTO,
    "split_data": "fleet.distributed_loader() deals the data out where the script calls it; to "
    "feed all workers alike, do not call it.",
    "sync_nccl_allreduce": "an update waits for the exchange of its gradients in any case, and "
    "backward never does.",
    "with_coordinator": "there are no coordinators here.",
    "without_graph_optimization": "modules run as they are; strategy.compile optimises them.",
}
"""Option or block -> a sentence, which goes on after a colon."""
