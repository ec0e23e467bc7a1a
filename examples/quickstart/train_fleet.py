"""train_torch.py for any number of workers: fleetrun --nproc_per_node 2 train_fleet.py."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet


def dataset() -> TensorDataset:
    """Points in the plane, and whether they lie inside a circle."""
    torch.manual_seed(0)
    points = torch.rand(4096, 2) * 2 - 1
    return TensorDataset(points, (points.norm(dim=1) < 0.8).long())


def main() -> None:
    """Train for five epochs."""
    fleet.init(is_collective=True)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    loader = fleet.distributed_loader(DataLoader(dataset(), batch_size=64, shuffle=True))
    for epoch in range(5):
        for points, inside in loader:
            loss = F.cross_entropy(model(points), inside)
            optimizer.minimize(loss)
        fleet.util.print_on_rank(f"epoch {epoch}: loss {loss:.3f}", 0)


if __name__ == "__main__":
    main()
