"""The client that speaks to an endpoint, by its address."""

from urllib.parse import urlsplit

from fleetx.evaluate.service import Service


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
