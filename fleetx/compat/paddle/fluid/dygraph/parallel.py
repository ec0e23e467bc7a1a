"""``paddle.fluid.dygraph.parallel``: several workers of an eager script of Paddle 1."""

from typing import Any

from fleetx.compat.paddle.distributed.parallel import (
    DataParallel,
    ParallelEnv,
    init_parallel_env,
)

__all__ = ["DataParallel", "Env", "ParallelEnv", "ParallelStrategy", "prepare_context"]

Env = ParallelEnv


class ParallelStrategy:
    """How many workers there are, and which one this is."""

    def __init__(self) -> None:
        env = ParallelEnv()
        self.nranks, self.local_rank = env.nranks, env.local_rank
        self.trainer_endpoints = env.trainer_endpoints
        self.current_endpoint = env.current_endpoint


def prepare_context(strategy: Any = None) -> Any:
    """Meet the other workers, if there are any."""
    found = strategy or ParallelStrategy()
    if found.nranks > 1:
        init_parallel_env()
    return found
