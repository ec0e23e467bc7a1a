"""Layers whose parameters do not fit into a worker."""

from fleetx.nn.inference import load_inference_model
from fleetx.nn.sparse_embedding import SparseEmbedding
from fleetx.ps.observers.follower import Follower
from fleetx.ps.tables.entries import CountFilterEntry, ProbabilityEntry, ShowClickEntry
from fleetx.ps.tables.initializers import Constant, Normal, Uniform
from fleetx.ps.tables.rules import SGD, Adagrad, Adam

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Constant",
    "CountFilterEntry",
    "Follower",
    "Normal",
    "ProbabilityEntry",
    "ShowClickEntry",
    "SparseEmbedding",
    "Uniform",
    "load_inference_model",
]
