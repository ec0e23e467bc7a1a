"""LAMB as an ordinary optimizer of torch."""

from fleetx.strategies.layerwise.lamb_optimizer import Lamb

__all__ = ["Lamb"]
