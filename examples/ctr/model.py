"""Wide and deep: what single ids are worth, and what a network makes of all of them together."""

import torch
from torch import Tensor, nn

from fleetx.nn import SparseEmbedding, Uniform

DENSE, SLOTS = 13, 26


class WideAndDeep(nn.Module):
    """Both embeddings live on the servers; the network is dense."""

    def __init__(self, dim: int = 8, hidden: int = 64) -> None:
        super().__init__()
        self.wide = SparseEmbedding(1, name="wide", pooling="sum")
        self.deep = SparseEmbedding(dim, name="deep", initializer=Uniform(-0.05, 0.05))
        self.network = nn.Sequential(
            nn.Linear(DENSE + SLOTS * dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """The logit of a click."""
        together = torch.cat([dense, self.deep(ids).flatten(1)], 1)
        logit: Tensor = self.network(together) + self.wide(ids)
        return logit.squeeze(-1)

    def prefetch(self, ids: Tensor) -> None:
        """Begin to fetch what the next batch needs."""
        self.wide.prefetch(ids)
        self.deep.prefetch(ids)
