"""Stops in the middle of the steps that are timed, and waits for a signal."""

import sys
import threading
from pathlib import Path

import torch
from torch import nn

import fleetx as fleet

fleet.init(is_collective=True)
model = fleet.distributed_model(nn.Linear(4, 1))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for batch in range(50):
    if batch == int(sys.argv[1]):
        Path("waits").touch()
        threading.Event().wait()
    optimizer.minimize(model(torch.ones(2, 4)).sum())
