"""Mixed precision: the model computes in 16 bits, its weights and their update keep 32."""

from fleetx.strategies.amp.strategy import Amp

__all__ = ["Amp"]
