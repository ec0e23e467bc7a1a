"""A user's script with one flaw, of the kinds that make runs or workers differ."""

import os
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet

FLAW = sys.argv[1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        noise = torch.randn(6, generator=unseeded()) if FLAW == "noise" else 0.0
        return self.fc(inputs + noise)


def unseeded() -> torch.Generator:
    return torch.Generator().manual_seed(int.from_bytes(os.urandom(6), "little"))


def main() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge = FLAW != "loaded"  # what is wrong with workers shows without a flag
    strategy.gradient_merge_configs = {"k_steps": 2}
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 6), torch.randint(0, 3, (256,)))
    model = fleet.distributed_model(Net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    if FLAW == "loaded" and fleet.is_first_worker():
        model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()})
    order = unseeded() if FLAW == "data" else torch.Generator().manual_seed(1)
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=order)
    for inputs, targets in fleet.distributed_loader(loader):
        optimizer.minimize(F.cross_entropy(model(inputs), targets))


if __name__ == "__main__":
    main()
