"""Random numbers that differ between the workers of a model-parallel group."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fleetx.compat.hybrid import hybrid_group

MODEL_PARALLEL_RNG = "model_parallel_rng"


class RNGStatesTracker:
    """States of the random generator by name."""

    def __init__(self) -> None:
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forget all of them."""
        self.states_, self.seeds_ = {}, set()

    def add(self, name: str, seed: int) -> None:
        """Begin a state with a seed."""
        if seed in self.seeds_:
            raise ValueError(f"seed {seed} already exists")
        if name in self.states_:
            raise ValueError(f"state {name} already exists")
        self.seeds_.add(seed)
        before = torch.get_rng_state()
        torch.manual_seed(seed)
        self.states_[name] = torch.get_rng_state()
        torch.set_rng_state(before)

    @contextmanager
    def rng_state(self, name: str = MODEL_PARALLEL_RNG) -> Iterator[None]:
        """Draw from a state inside."""
        if name not in self.states_:
            raise ValueError(f"state {name} does not exist; call add() first.")
        before = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(before)


_tracker = RNGStatesTracker()


def get_rng_state_tracker() -> RNGStatesTracker:
    """The one of this process."""
    return _tracker


def model_parallel_random_seed(seed: int | None = None) -> None:
    """Begin the state of this worker, and one that all of its group share."""
    place = hybrid_group().get_model_parallel_rank()
    base = random.randint(0, 655350) if seed is None else int(seed)
    _tracker.reset()
    torch.manual_seed(base)
    _tracker.add(MODEL_PARALLEL_RNG, base + 1024 + place)
