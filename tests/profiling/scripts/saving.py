"""Saves whenever it can: after each batch, by its checkpoint manager, and however it ends.

Whatever goes wrong with a batch, it goes on with the next one.
"""

import torch
from safetensors.torch import save_file
from torch import nn

import fleetx as fleet

fleet.init(is_collective=True)
manager = fleet.CheckpointManager("checkpoints", steps=1, resume=False)
model = fleet.distributed_model(nn.Linear(4, 1))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
manager.load(model, optimizer)
try:
    for _ in range(50):
        loss = model(torch.ones(2, 4)).sum()
        try:
            optimizer.minimize(loss)
        except:  # noqa: E722 - as scripts do that shall survive
            continue
        manager.step()
        torch.save(model.state_dict(), "last.pt")
        save_file(model.state_dict(), "last.safetensors")
finally:
    torch.save(model.state_dict(), "final.pt")
    fleet.save_weights(model, "weights")
