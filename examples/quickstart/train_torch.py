"""A plain PyTorch script for one process; train_fleet.py beside it is the same for many."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def dataset() -> TensorDataset:
    """Points in the plane, and whether they lie inside a circle."""
    torch.manual_seed(0)
    points = torch.rand(4096, 2) * 2 - 1
    return TensorDataset(points, (points.norm(dim=1) < 0.8).long())


def main() -> None:
    """Train for five epochs."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(dataset(), batch_size=64, shuffle=True)
    for epoch in range(5):
        for points, inside in loader:
            loss = F.cross_entropy(model(points), inside)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
