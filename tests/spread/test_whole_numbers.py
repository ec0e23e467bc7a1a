"""Numbers that a script takes out of parameters and gradients are those of the whole tensors."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world

FIRST, SECOND, SHARDED = ({"sharding": {"stage": n, "sharding_degree": 2}} for n in (1, 2, 3))
CUT = {"tensor_parallel": {"tensor_parallel_degree": 2, "plan": "mlp"}}
BOTH = {
    "sharding": {"stage": 3, "sharding_degree": 2},
    "tensor_parallel": {"tensor_parallel_degree": 2, "plan": "mlp"},
}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))


def loss_of(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(4, 8, generator=generator), torch.tensor([0, 4, 2, 1])
    return F.cross_entropy(model(x), y)


def logged(parameters: Any) -> list[float | bool]:
    """What loops write down of a model, in ways that were seen in public code."""
    found: list[float | bool] = []
    total = 0.0
    for parameter in parameters:
        assert parameter.grad is not None
        total += parameter.grad.norm(2).item() ** 2
        found += [float(parameter.detach().sum()), parameter.detach().abs().max().item()]
        found += [bool(torch.isnan(parameter.grad).any()), (parameter.grad == 0).sum().item()]
    return [total**0.5, *found]


def fleet_of(flags: dict[str, dict[str, Any]]) -> Any:
    strategy = fleet.DistributedStrategy()
    for flag, options in flags.items():
        setattr(strategy, flag, True)
        setattr(strategy, f"{flag}_configs", options)
    fleet.init(is_collective=True, strategy=strategy)
    return fleet.distributed_model(mlp())


def trained(flags: dict[str, dict[str, Any]]) -> tuple[list[float | bool], list[float | bool]]:
    model = fleet_of(flags)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    hooked: list[float | bool] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: hooked.append(p.grad.sum().item()))
    optimizer.backward(loss_of(model))
    return logged(model.parameters()), sorted(hooked)


@pytest.mark.parametrize(
    "flags", [FIRST, SECOND, SHARDED, CUT, BOTH], ids=["first", "second", "third", "cut", "both"]
)
def test_logged_numbers_are_those_of_one_process(flags: dict[str, dict[str, Any]]) -> None:
    """torch gave each worker what its own part comes to, without a word."""
    usual = mlp()
    loss_of(usual).backward()
    for found, _ in world(2 * len(flags)).run(trained, flags):
        assert found == pytest.approx(logged(usual.parameters()), rel=1e-4, abs=1e-6)


def test_hooks_read_whole_gradients() -> None:
    usual = mlp()
    loss_of(usual).backward()
    sums = sorted(float(p.grad.sum()) for p in usual.parameters() if p.grad is not None)
    for _, hooked in world(2).run(trained, CUT):
        assert hooked == pytest.approx(sums, rel=1e-4, abs=1e-6)


def asked_alone() -> str:
    strategy = fleet.DistributedStrategy()
    strategy.sharding = True
    strategy.sharding_configs = {"stage": 3, "sharding_degree": 2}
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(mlp())
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    if fleet.worker_index() == 1:
        fleet.barrier_worker()
        return ""
    with pytest.raises(RuntimeError) as caught:
        next(iter(model.parameters())).sum().item()
    fleet.barrier_worker()
    return str(caught.value)


def test_a_worker_that_asks_alone_hears_why_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    def short() -> str:
        with monkeypatch.context() as patch:
            if fleet_rank() == 0:
                patch.setenv("FLEETX_TIMEOUT", "2")
            return asked_alone()

    sentence, _ = world(2).run(short)
    assert "was asked for by worker 0, and not by all of those that share it (0, 1)" in sentence
    assert "ask on all of them, and write it down on one" in sentence


def asked_apart() -> list[str]:
    model = fleet_of(SHARDED)
    first, second = model[0].weight, model[2].weight

    def ask() -> float:
        if fleet.worker_index() == 0:
            return float(first.norm().item())
        return float(second.norm().item())

    said = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            ask()
        said.append(str(caught.value))
    assert first.norm().item() > second.norm().item() > 0  # afterwards all goes on
    return said


def test_workers_that_ask_for_different_numbers_hear_so() -> None:
    """They got a number that was made of both, without a word."""
    for said in world(2).run(asked_apart):
        for sentence in said:
            assert "ask for different things at the same time" in sentence
            assert all(f"test_whole_numbers.py:{line}" in sentence for line in asked_lines())


def asked_lines() -> list[int]:
    first = asked_apart.__code__.co_firstlineno
    return [first + 6, first + 7]


def fleet_rank() -> int:
    return torch.distributed.get_rank()
