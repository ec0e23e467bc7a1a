"""A job whose processes are killed from outside, and which tells what it has learned."""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fleetx as fleet
from fleetx.nn import SparseEmbedding

HELD = 5
"""Steps that wait for the test."""
MODE, STEPS, PAUSE = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

strategy = fleet.DistributedStrategy()
if MODE != "sync":
    strategy.a_sync = True
    strategy.a_sync_configs = {"k_steps": 2 if MODE == "geo" else 0, "half_async": MODE == "half"}
fleet.init(strategy=strategy)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(8, name="words", pooling="mean")
        self.head = nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids)).squeeze(-1)


torch.manual_seed(0)
model = fleet.distributed_model(Net())
optimizer = fleet.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
fleet.init_worker()
generator = torch.Generator().manual_seed(fleet.worker_index())
for step in range(STEPS):
    ids = torch.randint(0, 500, (32, 4), generator=generator)
    loss = ((model(ids) - (ids % 2).float().mean(1)) ** 2).mean()
    optimizer.minimize(loss)
    print("step", step, flush=True)
    time.sleep(PAUSE)
    while step == STEPS - HELD and not Path("go").exists():
        time.sleep(0.01)  # however slow the machine is, what the test does comes before the end
model.eval()
with torch.no_grad():
    rows = model.words(torch.arange(500)[:, None])
if fleet.is_first_worker() and MODE != "async":
    np.save("table.npy", torch.cat([rows.flatten(), model.head.weight.detach().flatten()]).numpy())
fleet.stop_worker()
print("done", flush=True)
