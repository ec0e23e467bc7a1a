"""Sharding: parameters, gradients and optimizer state are spread over ranks (ZeRO 1 to 3)."""

from fleetx.strategies.sharding.strategy import Sharding

__all__ = ["Sharding"]
