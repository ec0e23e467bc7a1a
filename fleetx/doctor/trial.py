"""A small job that shows whether workers can train together.

``fleetx doctor`` starts it on two workers. On several machines: ``fleetrun --ips A,B -m
fleetx.doctor.trial``, the same line on each.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import fleetx as fleet
from fleetx import roles

NUMBERS = 1 << 20
"""Of the tensor that is summed: 4 MB."""
ROUNDS = 5
EXACT, ON_CARDS = 1e-5, 1e-3
"""How far weights may be from those of one process; cards multiply with fewer digits."""


class Wrong(RuntimeError):
    """An exchange has worked and given the wrong result."""


def main() -> None:
    """What every worker does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write what was found as JSON")
    output = parser.parse_args().output
    fleet.init(is_collective=True)
    found: dict[str, Any] = {}
    for topic, part in PARTS.items():
        found[topic] = part()
        if roles.is_first_worker():
            if output is not None:
                output.write_text(json.dumps(found), encoding="utf-8")
            else:
                print(f"ok       {topic:<14}{found[topic]}", flush=True)  # noqa: T201


def all_reduce() -> str:
    """Sum a tensor over all workers, and hold it against what must come out."""
    device, workers = roles.device(), roles.worker_num()
    seconds = []
    for _ in range(ROUNDS):
        numbers = torch.full((NUMBERS,), float(roles.worker_index() + 1), device=device)
        _wait(device)
        began = time.perf_counter()
        dist.all_reduce(numbers)
        _wait(device)
        seconds.append(time.perf_counter() - began)
        if not bool((numbers == workers * (workers + 1) / 2).all()):
            raise Wrong(f"an all-reduce of {workers} workers gave {float(numbers[0])}")
    size = numbers.numel() * numbers.itemsize
    return f"{_where()}: {size / 1e6:.0f} MB in {min(seconds) * 1e3:.2g} ms"


def training_step() -> str:
    """One update of all workers gives the weights of one process on all their samples."""
    workers, me, device = roles.worker_num(), roles.worker_index(), roles.device()
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    inputs, targets = torch.randn(8 * workers, 8), torch.randn(8 * workers, 4)
    model = fleet.distributed_model(copy.deepcopy(alone).to(device))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    mine = slice(8 * me, 8 * (me + 1))
    optimizer.minimize(_loss(model(inputs[mine].to(device)), targets[mine].to(device)))
    rule = torch.optim.SGD(alone.parameters(), lr=0.1)
    _loss(alone(inputs), targets).backward()
    rule.step()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    apart = max(float((a.detach().cpu() - b.detach()).abs().max()) for a, b in pairs)
    if apart > (EXACT if device.type == "cpu" else ON_CARDS):
        raise Wrong(f"after one update worker {me} is {apart:.2g} from the weights of one process")
    return f"{_where()}: one update gives the weights of one process"


def clocks() -> str:
    """How far the clocks of the workers are apart, less what the exchange itself takes."""
    offsets = []
    for _ in range(ROUNDS):
        dist.barrier()
        read: list[Any] = [None] * roles.worker_num()
        dist.all_gather_object(read, time.time())
        offsets.append(max(read) - min(read))
    apart = min(offsets)
    if apart > 1:
        raise Wrong(
            f"the clocks of the machines are {apart:.1f} s apart; machines that are seconds apart "
            "lose each other: keep them right with NTP"
        )
    return f"less than {max(apart, 1e-3) * 1e3:.0f} ms apart"


PARTS: dict[str, Callable[[], str]] = {
    "all-reduce": all_reduce,
    "training step": training_step,
    "clocks": clocks,
}


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets)


def _where() -> str:
    kind = "the CPU" if roles.device().type == "cpu" else "cards"
    return f"{roles.worker_num()} workers on {kind} ({dist.get_backend()})"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
