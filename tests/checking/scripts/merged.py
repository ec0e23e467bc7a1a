"""A user's script with two flags."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet


def main() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.fp16_allreduce = True
    strategy.localsgd = "--refused" in sys.argv
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 2}
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 6), torch.randint(0, 3, (512,)))
    torch.manual_seed(fleet.worker_index())  # as scripts do, so that dropout differs
    model = fleet.distributed_model(nn.Linear(6, 3))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=order)
    for inputs, targets in fleet.distributed_loader(loader):
        optimizer.minimize(F.cross_entropy(model(inputs), targets))
    raise AssertionError("the check stops the script long before")


if __name__ == "__main__":
    main()
