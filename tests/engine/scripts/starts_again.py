"""A script that leaves its job and begins another one, twice."""

import torch

import fleetx as fleet
from fleetx import roles

for job in range(3):
    roles.stop()
    fleet.init(is_collective=True)
    model = fleet.distributed_model(torch.nn.Linear(2, 2))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.minimize(model(torch.ones(1, 2)).sum())
    print(f"job {job} done by worker {fleet.worker_index()}", flush=True)
