"""CUDA graph: a whole step runs as one piece, so that the GPU does not wait for the host."""

from fleetx.strategies.cuda_graph.strategy import CudaGraph

__all__ = ["CudaGraph"]
