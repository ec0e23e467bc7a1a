"""A running service, asked over the Open Inference Protocol v2."""

from typing import Protocol
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class ServiceError(RuntimeError):
    """The service did not answer as the protocol says; one sentence for a person."""


class Service(Protocol):
    """Whoever answers batches of inputs with vectors."""

    def infer(self, batch: Array) -> Array:
        """The first output for a batch; raises ``ServiceError``."""


def service_at(endpoint: str, model: str, *, input_name: str | None, timeout: float) -> Service:
    """The client for an endpoint.

    Args:
        endpoint: ``http://host:port`` or ``https://…`` for REST, ``grpc://host:port`` for gRPC.
        model: the name under which the service knows the model.
        input_name: that of the model's input; the service is asked for it if None.
        timeout: seconds that one answer may take.
    """
    scheme = _scheme_of(endpoint)
    if scheme in {"http", "https"}:
        from fleetx.evaluate.rest import RestService

        return RestService(endpoint, model, input_name=input_name, timeout=timeout)
    from fleetx.evaluate.grpc_service import GrpcService

    return GrpcService(endpoint, model, input_name=input_name, timeout=timeout)


def _scheme_of(endpoint: str) -> str:
    try:
        found = urlsplit(endpoint)
        is_address = found.hostname is not None and (found.port is None or found.port > 0)
    except ValueError:  # a port that is no number
        is_address = False
    if not is_address or found.scheme not in {"http", "https", "grpc"}:
        raise ValueError(
            f"--endpoint {endpoint} is no address; give http://host:port for REST or "
            "grpc://host:port for gRPC."
        )
    return found.scheme


def vectors_in(values: Array, shape: list[int], rows: int, endpoint: str) -> Array:
    """An answer as one vector for each input."""
    if not shape or shape[0] != rows or values.size != int(np.prod(shape)):
        raise ServiceError(
            f"{endpoint} answered {rows} inputs with {values.size} numbers of shape {shape}; the "
            "model must return one vector for each input."
        )
    return values.astype(np.float32, copy=False).reshape(rows, -1)
