"""Clip: gradients are limited after they were exchanged and before they are used."""

from fleetx.strategies.clip.strategy import Clip

__all__ = ["Clip"]
