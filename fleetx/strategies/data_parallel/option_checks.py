"""Options about the all-reduce that would have no effect, or cannot be had."""

from fleetx.plan.error import PlanError
from fleetx.plan.strategy import Plan, Strategy


def examine_options(plan: Plan, others: list[Strategy]) -> None:
    """Refuse options about the all-reduce that would have no effect, or cannot be had."""
    options, ranks = plan.options, plan.mesh["dp"]
    encoded = any("reduce" in strategy.contract.touches for strategy in others)
    channels = options.get("nccl_comm_num", 1)
    two_level = options.get("use_hierarchical_allreduce", False)
    block = options.get("hierarchical_allreduce_inter_nranks", 1)
    megabytes = options.get("fuse_grad_size_in_MB", 32)
    if encoded and (channels > 1 or two_level):
        raise PlanError(
            "strategy.nccl_comm_num and strategy.use_hierarchical_allreduce say how gradients are "
            "all-reduced, and a strategy of this plan exchanges them in its own way; leave them at "
            "1 and False."
        )
    if two_level and channels > 1:
        raise PlanError(
            f"strategy.nccl_comm_num = {channels} deals all-reduces out to communicators, and "
            "strategy.use_hierarchical_allreduce has its own; leave nccl_comm_num at 1."
        )
    if block > 1 and not two_level:
        raise PlanError(
            f"strategy.hierarchical_allreduce_inter_nranks = {block} needs "
            "strategy.use_hierarchical_allreduce = True; set it, or leave the block at 1."
        )
    if not options.get("fuse_all_reduce_ops", True) and megabytes != 32:
        raise PlanError(
            f"strategy.fuse_grad_size_in_MB = {megabytes} is the size of a bucket, and "
            "strategy.fuse_all_reduce_ops = False has none; leave it at 32."
        )
    if two_level:
        _check_block(block, ranks)


def _check_block(size: int, ranks: int) -> None:
    """Neighbours that make the inner level must be more than one and fewer than all."""
    if size == 1 or ranks % size or size == ranks:
        divisors = [d for d in range(2, ranks) if ranks % d == 0]
        instead = (
            f"set strategy.hierarchical_allreduce_inter_nranks to one of {divisors}"
            if divisors
            else "set strategy.use_hierarchical_allreduce = False"
        )
        raise PlanError(
            f"strategy.hierarchical_allreduce_inter_nranks = {size} does not cut the {ranks} "
            f"workers into equal blocks of at least two; {instead}."
        )
