"""Data parallel: every rank holds the whole model, and gradients are averaged during backward."""

from fleetx.strategies.data_parallel.strategy import DataParallel

__all__ = ["DataParallel"]
