"""Train from one batch to another: in_parts.py FOLDER FIRST LAST FLAG...; state is per rank."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import fleetx as fleet

OPTIONS: dict[str, dict[str, Any]] = {
    "amp": {"init_loss_scaling": 1024.0, "incr_every_n_steps": 2},
    "gradient_merge": {"k_steps": 2},
    "localsgd": {"k_steps": 3},
    "adaptive_localsgd": {"init_k_steps": 3},
    "dgc": {"rampup_begin_step": 1, "sparsity": [0.9]},
}


def main() -> None:
    folder, first, last, flags = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    strategy = fleet.DistributedStrategy()
    for flag in flags:
        setattr(strategy, flag, True)
        if flag in OPTIONS:
            setattr(strategy, f"{flag}_configs", OPTIONS[flag])
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 128), nn.Linear(128, 3))
    fleet.distributed_model(model)
    rule = torch.optim.Adam if "lamb" in flags else torch.optim.SGD
    options: dict[str, Any] = {} if "lamb" in flags else {"momentum": 0.9}
    optimizer = fleet.distributed_optimizer(rule(model.parameters(), lr=0.01, **options))
    path = folder / f"rank{fleet.worker_index()}.pt"
    if first:
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for batch in range(first, last):
        random = torch.Generator().manual_seed(2 * batch + fleet.worker_index())
        inputs = torch.randn(16, 8, generator=random)
        targets = torch.randint(0, 3, (16,), generator=random)
        optimizer.minimize(F.cross_entropy(model(inputs), targets))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


if __name__ == "__main__":
    main()
