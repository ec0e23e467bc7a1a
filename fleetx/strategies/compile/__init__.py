"""Compile: the forward and its backward run as code that torch.compile makes for this model."""

from fleetx.strategies.compile.strategy import Compile

__all__ = ["Compile"]
