"""A user's script: trains with three optimizers and saves the weights of each."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet

GLOBAL_BATCH = 32


def train(name: str) -> torch.Tensor:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    data = TensorDataset(torch.randn(160, 6), torch.randint(0, 3, (160,)))
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(
        {
            "sgd": torch.optim.SGD(model.parameters(), lr=0.1),
            "momentum": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            "adam": torch.optim.Adam(model.parameters(), lr=0.01),
        }[name]
    )
    batch = GLOBAL_BATCH // fleet.worker_num()
    order = torch.Generator().manual_seed(5)
    loader = DataLoader(data, batch_size=batch, shuffle=True, generator=order)
    for _ in range(3):
        for inputs, targets in fleet.distributed_loader(loader):
            optimizer.minimize(F.cross_entropy(model(inputs), targets))
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main() -> None:
    fleet.init(is_collective=True)
    trained = {name: train(name) for name in ("sgd", "momentum", "adam")}
    for weights in trained.values():
        everyone = fleet.util.all_gather(weights.numpy())
        assert all((other == everyone[0]).all() for other in everyone), "workers disagree"
    if fleet.is_first_worker():
        torch.save({"workers": fleet.worker_num(), "weights": trained}, sys.argv[1])


if __name__ == "__main__":
    main()
