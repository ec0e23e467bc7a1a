"""LARS and LAMB: update rules with one learning rate per layer."""

from fleetx.strategies.layerwise.lamb import Lamb
from fleetx.strategies.layerwise.lars import Lars

__all__ = ["Lamb", "Lars"]
