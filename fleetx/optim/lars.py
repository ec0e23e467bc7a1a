"""LARS as an ordinary optimizer of torch."""

from fleetx.strategies.layerwise.lars_optimizer import Lars

__all__ = ["Lars"]
