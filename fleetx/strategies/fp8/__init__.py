"""fp8: linear layers multiply in float8, on GPUs that do so twice as fast as in 16 bits."""

from fleetx.strategies.fp8.strategy import Fp8

__all__ = ["Fp8"]
