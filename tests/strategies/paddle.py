"""Paddle's trajectories: the jobs they describe, run through fleetx."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world

GOLDEN = Path(__file__).parent.parent / "golden"


def golden(name: str) -> dict[str, Any]:
    """One file of golden data."""
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return found


def start(**settings: Any) -> fleet.DistributedStrategy:
    """Begin a collective job with these switches and options."""
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    roles.stop()  # a model of the job before may still be there
    fleet.init(is_collective=True, strategy=strategy)
    return strategy


def optimizer_of(options: dict[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), options["lr"], momentum=options.get("momentum", 0.0))


def follow(data: dict[str, Any], **settings: Any) -> list[tuple[float, Tensor, Tensor]]:
    """Loss, weight and bias after each step of the linear model on this worker's data."""
    start(**settings)
    rank = fleet.worker_index()
    model = nn.Linear(3, 1)
    model.weight.data = torch.tensor(data["w0"]).T.contiguous()
    model.bias.data = torch.tensor(data["b0"])
    fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(optimizer_of(data["optimizer"], model))
    found = []
    for x, y in zip(data["x"][rank], data["y"][rank], strict=True):
        loss = F.mse_loss(model(torch.tensor(x)), torch.tensor(y))
        optimizer.minimize(loss)
        found.append((float(loss), model.weight.detach().T.clone(), model.bias.detach().clone()))
    return found


def check_two_workers(name: str, **settings: Any) -> None:
    """Both workers walk the trajectory that Paddle's workers walked."""
    data = golden(name)
    for theirs, ours in zip(data["ranks"], world(2).run(follow, data, **settings), strict=True):
        assert len(theirs) == len(ours) > 5
        for row, (loss, weight, bias) in zip(theirs, ours, strict=True):
            torch.testing.assert_close(loss, row["local_loss"], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(weight, torch.tensor(row["w"]), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(bias, torch.tensor(row["b"]), rtol=1e-6, atol=1e-6)


class Given(nn.Module):
    """A model whose gradients are those of the file: its loss is their product with the weights."""

    def __init__(self, initial: dict[str, Any]) -> None:
        super().__init__()
        for path, values in initial.items():
            owner, name = path.split(".")
            if not hasattr(self, owner):
                self.add_module(owner, nn.Module())
            self.get_submodule(owner).register_parameter(name, nn.Parameter(torch.tensor(values)))

    def forward(self, gradients: dict[str, Any]) -> Tensor:
        parts = [(self.get_parameter(n) * torch.tensor(g)).sum() for n, g in gradients.items()]
        return torch.stack(parts).sum()


def walk(
    data: dict[str, Any], make: Any, grad_clip: Any = None, **settings: Any
) -> list[dict[str, Tensor]]:
    """The parameters after each step, in one process with the file's gradients."""
    start(**settings)
    model = fleet.distributed_model(Given(data["initial_params"]))
    optimizer = fleet.distributed_optimizer(make(model.parameters()), grad_clip=grad_clip)
    found = []
    for gradients in data["grads"]:
        optimizer.minimize(model(gradients))
        found.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return found


def check_given(name: str, make: Any, grad_clip: Any = None, **settings: Any) -> None:
    """The parameters are Paddle's after each step."""
    data = golden(name)
    (ours,) = world(1).run(walk, data, make, grad_clip, **settings)
    assert len(ours) == len(data["params_after_step"]) > 5
    for row, theirs in zip(ours, data["params_after_step"], strict=True):
        for parameter, values in theirs.items():
            torch.testing.assert_close(
                row[parameter], torch.tensor(values), rtol=1e-6, atol=1e-6, msg=parameter
            )
