"""Recompute: activations inside named submodules are not kept but computed again in backward."""

from fleetx.strategies.recompute.strategy import Recompute

__all__ = ["Recompute"]
