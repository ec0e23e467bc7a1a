"""Parameter servers: workers push gradients to servers and pull what these make of them."""

from fleetx.strategies.parameter_server.a_sync import ASync
from fleetx.strategies.parameter_server.strategy import ParameterServer

__all__ = ["ASync", "ParameterServer"]
