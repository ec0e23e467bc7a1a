"""Deep gradient compression: only the largest entries of what waits to be sent travel."""

from fleetx.strategies.dgc.strategy import DGC

__all__ = ["DGC"]
