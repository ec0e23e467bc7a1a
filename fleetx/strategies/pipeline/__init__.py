"""Pipeline: consecutive layers live on different ranks, and a batch flows through in parts."""

from fleetx.strategies.pipeline.strategy import Pipeline

__all__ = ["Pipeline"]
