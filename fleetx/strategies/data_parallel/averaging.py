"""What averages a bucket of gradients, by the options of the job."""

import logging
from functools import partial

from fleetx.comm.reduction import dealt, flat, two_level
from fleetx.plan.job import Job
from fleetx.plan.step import Reduce
from fleetx.roles.subgroups import copies, two_levels

logger = logging.getLogger(__name__)

UNUSED = (
    "the last batch did not reach every parameter, so workers wait for gradients that never come; "
    "set strategy.find_unused_parameters = True, or freeze those parameters before "
    "fleet.distributed_model()."
)


def plain_average(job: Job) -> Reduce:
    """What averages a bucket over all ranks at once, as DDP itself would."""
    average = flat(job.mesh["dp"].get_group(), job.wire)
    return lambda bucket: average(bucket.buffer())


def reduction(job: Job) -> Reduce | None:
    """What averages a bucket; None leaves it to DDP, which needs no Python for the plain case."""
    channels = job.option("nccl_comm_num", int)
    if job.option("use_hierarchical_allreduce", bool):
        block = job.option("hierarchical_allreduce_inter_nranks", int)
        averages = [two_level(*two_levels(job.mesh, "dp", block), job.wire)]
    elif channels > 1 or job.wire is not None:
        averages = [flat(group, job.wire) for group in copies(job.mesh, "dp", channels)]
    else:
        return None
    # DDP keeps it where no search for garbage comes, so that it must not hold the job.
    return dealt(averages, partial(_say_idle, channels, job.mesh.get_rank() == 0))


def _say_idle(channels: int, is_first: bool, buckets: int) -> None:
    """Communicators that nothing is dealt to; known when there are gradients, said by one."""
    if buckets < channels and is_first:
        idle = f"{channels - max(1, buckets)} of the {channels} communicators"
        logger.warning(
            "At rest: %s of strategy.nccl_comm_num, because the gradients travel in %d bucket%s "
            "and each goes to one of them; set nccl_comm_num = %d, a smaller fuse_grad_size_in_MB, "
            "or fuse_all_reduce_ops = False.",
            idle,
            buckets,
            "s" * (buckets != 1),
            buckets,
        )
