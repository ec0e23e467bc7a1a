"""A running service, asked over the Open Inference Protocol v2."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class ServiceError(RuntimeError):
    """The service did not answer as the protocol says; one sentence for a person."""


class Service(Protocol):
    """Whoever answers batches of inputs with vectors."""

    def infer(self, batch: Array) -> Array:
        """The first output for a batch; raises ``ServiceError``."""


def vectors_in(values: Array, shape: list[int], rows: int, endpoint: str) -> Array:
    """An answer as one vector for each input."""
    if not shape or shape[0] != rows or values.size != int(np.prod(shape)):
        raise ServiceError(
            f"{endpoint} answered {rows} inputs with {values.size} numbers of shape {shape}; the "
            "model must return one vector for each input."
        )
    return values.astype(np.float32, copy=False).reshape(rows, -1)
