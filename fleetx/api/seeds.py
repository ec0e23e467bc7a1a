"""``fleet.seed``: random numbers that are the same in every run, on all workers or on each."""

import random

import numpy as np
import torch

from fleetx.api.layout import data_index
from fleetx.expected import FLAG, WHOLE, takes


@takes("fleet.seed", number=WHOLE, per_worker=FLAG)
def seed(number: int, *, per_worker: bool = False) -> None:
    """Seed torch on all devices, numpy and Python's ``random``.

    Args:
        number: the seed, 0 or more.
        per_worker: another seed for each share of the data, for augmentations that shall differ
            between workers; workers of one pipeline or tensor-parallel group see the same samples
            and get the same. It needs ``fleet.init`` before it. Otherwise all workers get the same.
    """
    if number < 0:
        raise ValueError(f"fleet.seed() takes a number from 0, got {number}")
    # Seeds of other workers must not be those of another run, as number + index would be.
    mixed = np.random.SeedSequence([number, data_index()]) if per_worker else None
    own = number if mixed is None else int(mixed.generate_state(1, np.uint64)[0])
    random.seed(own)
    np.random.seed(own % 2**32)
    torch.manual_seed(own % 2**63)
