"""A job that is followed from outside: after each stretch it tells what its tables hold."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fleetx as fleet
from fleetx.nn import SparseEmbedding

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(4, name="words")
        self.head = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids)).squeeze(-1)


def tell(name: str) -> None:
    model.eval()
    with torch.no_grad():
        outputs = model(torch.arange(400))
    model.train()
    np.save("partial.npy", outputs.numpy())
    Path("partial.npy").rename(f"{name}.npy")


def train(low: int, high: int) -> None:
    for _ in range(10):
        ids = torch.randint(low, high, (32,))
        loss = ((model(ids) - (ids % 2).float()) ** 2).mean()
        optimizer.minimize(loss)


torch.manual_seed(0)
model = fleet.distributed_model(Net())
optimizer = fleet.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
fleet.init_worker()
for number, (low, high) in enumerate(((0, 300), (200, 400), (0, 100))):
    if number == 2:
        fleet.shrink(30)  # a day ends, and nothing goes
    train(low, high)
    if number == 0:
        fleet.save_inference_model("serve")
        Path("endpoints").write_text(os.environ["PADDLE_PSERVERS_IP_PORT_LIST"])
    if number == 2:
        fleet.shrink(1)  # what was not trained on this day goes
    tell(f"outputs-{number}")
    while not Path(f"go-{number}").exists():
        time.sleep(0.01)
fleet.stop_worker()
