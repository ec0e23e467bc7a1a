"""Workers that have other numbers of batches, as those whose share of the data is smaller."""

import sys

import torch

import fleetx as fleet


def main() -> None:
    fleet.init(is_collective=True)
    model = fleet.distributed_model(torch.nn.Linear(2, 1))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(int(sys.argv[1 + fleet.worker_index()])):
        loss = model(torch.ones(4, 2)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
