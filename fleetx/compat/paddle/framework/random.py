"""``paddle.framework.random``: several streams of random numbers, by names."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fleetx.compat.paddle.device import (
    get_cuda_rng_state,
    get_rng_state,
    set_cuda_rng_state,
    set_rng_state,
)

__all__ = ["get_cuda_rng_state", "get_rng_state", "set_cuda_rng_state", "set_rng_state"]

_streams: dict[str, list[torch.Tensor]] = {}


def set_random_seed_generator(name: str, seed: int) -> None:
    """A stream of its own that begins at a number."""
    before = get_cuda_rng_state()
    torch.manual_seed(int(seed))
    _streams[name] = get_cuda_rng_state()
    set_cuda_rng_state(before)


@contextmanager
def guard_random_seed_generator(name: str) -> Iterator[None]:
    """Draw from a stream inside."""
    if name not in _streams:
        raise ValueError(
            f"there is no stream {name!r}; begin it with set_random_seed_generator({name!r}, 1)."
        )
    before = get_cuda_rng_state()
    set_cuda_rng_state(_streams[name])
    try:
        yield
    finally:
        _streams[name] = get_cuda_rng_state()
        set_cuda_rng_state(before)
