"""Whole batches on any number of workers, whose data no DataLoader gives."""

import torch
from torch import nn

import fleetx as fleet

fleet.init(is_collective=True)
torch.manual_seed(0)
model = fleet.distributed_model(
    nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)),
    criterion=nn.functional.mse_loss,
)
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(50):
    model.train_batch((torch.ones(4, 64), torch.zeros(4, 1)))
print("the script came to its end")
