"""Tensor parallel: the weights of single layers are cut, and ranks compute parts of each layer."""

from fleetx.strategies.tensor_parallel.strategy import TensorParallel

__all__ = ["TensorParallel"]
