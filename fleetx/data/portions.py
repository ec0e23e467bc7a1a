"""How many samples a worker takes at once: what the loader says, unless its run began elsewhere."""

import sys
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset


@dataclass(frozen=True)
class Portion:
    """A batch of one worker."""

    batch_size: int = 1
    merged: int = 1
    """Batches that stand for one of the number of workers on which the run began."""


def portion_of(loader: DataLoader[Any]) -> Portion:
    """What a worker takes of this loader."""
    wanted = loader.batch_size or 1
    if "fleetx.api.session" not in sys.modules:
        return Portion(wanted)
    from fleetx.api import session
    from fleetx.api.global_batch import batch_size

    if not session.begun():
        return Portion(wanted)
    here = session.current("distributed_loader")
    fixed = loader.batch_size is None or isinstance(loader.dataset, IterableDataset)
    return Portion(batch_size(here, wanted, fixed=fixed), here.merged)
