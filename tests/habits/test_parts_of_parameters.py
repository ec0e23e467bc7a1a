"""Under a pipeline, scripts that go over ``model.parameters()`` see those of one worker."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import utils

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world
from tests.habits.both import said


def begun(penalty: float = 0.0) -> Any:
    roles.stop()
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.pipeline_configs = {"split": ["2"], "accumulate_steps": 2}
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs, targets)
        if penalty:
            return loss + penalty * sum(p.pow(2).sum() for p in net.parameters())
        return loss

    return fleet.distributed_model(net, criterion=criterion)


def optimized(model: Any) -> Any:
    groups: list[dict[str, Any]] = [
        {"params": [p for n, p in model.named_parameters() if n.endswith("weight")]},
        {"params": (p for n, p in model.named_parameters() if n.endswith("bias"))},
    ]
    return fleet.distributed_optimizer(torch.optim.SGD(groups, lr=0.1))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(8, 6, generator=generator), torch.arange(8) % 3


def usual() -> None:
    """What is right of a part, and nobody shall hear of."""
    model = begun()
    assert sum(1 for _ in [next(model.parameters())]) == 1
    optimizer = optimized(model)
    model.train_batch(batch())
    model.zero_grad()
    optimizer.zero_grad()
    assert next(model.parameters()).dtype == torch.float32
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    utils.clip_grad_value_(model.parameters(), 0.1)  # looks at each number by itself
    assert first.grad.max() < 0.2
    model.zero_grad()
    model.train_batch(batch())


def counted() -> None:
    model = begun()
    assert sum(p.numel() for p in model.parameters()) < 83
    assert sum(p.numel() for p in model.parameters()) < 83  # told once


def measured() -> None:
    model = begun()
    optimized(model)
    total = 0.0
    for _, p in model.named_parameters():
        total += p.detach().norm().item() ** 2
    for p in model.parameters():
        total += p.detach().norm().item() ** 2


LIBRARY = f"{Path(torch.__file__).parent}metrics/sums.py"
"""The folder of a library that begins as torch's does."""


def counted_by_a_library() -> None:
    names: dict[str, Any] = {}
    code = "def count(model): return sum(p.numel() for p in model.parameters())"
    exec(compile(code, LIBRARY, "exec"), names)
    assert names["count"](begun()) < 83


def test_libraries_whose_names_begin_as_that_of_torch_are_told_as_scripts_are() -> None:
    for found in world(2).run(said, counted_by_a_library):
        assert [sentence for sentence in found if f"{LIBRARY}:1 goes over" in sentence]


TOLD: dict[Callable[[], None], int] = {usual: 0, counted: 1, measured: 1}


@pytest.mark.parametrize("loop", TOLD)
def test_a_script_that_adds_up_some_parameters_is_told_once(loop: Callable[[], None]) -> None:
    """They were those of one worker, and others on each, without a word."""
    for found in world(2).run(said, loop):
        told = [sentence for sentence in found if "goes over model.parameters()" in sentence]
        assert len(told) == TOLD[loop]
        for sentence in told:
            assert f"test_parts_of_parameters.py:{_line(loop)} goes over" in sentence
            assert "this worker has 2 of 4 parameters of the model" in sentence
            assert "sums over them (norms, penalties, counts) are not those of" in sentence


def limited() -> None:
    model = begun()
    optimized(model)
    next(model.parameters()).register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    for _ in range(2):
        model.train_batch(batch())


def test_hooks_that_see_the_gradient_of_a_micro_batch_are_told_of_once() -> None:
    for name, found in zip(("0.weight", "2.weight"), world(2).run(said, limited), strict=True):
        (told,) = found
        assert told.startswith(
            f"'{name}' has a hook of register_hook(), which sees the gradient of"
        )


def _line(loop: Callable[[], None]) -> int:
    return loop.__code__.co_firstlineno + {counted: 2, measured: 4}[loop]


@world(2)
def test_functions_that_take_parameters_together_are_refused() -> None:
    model = begun()
    optimized(model)
    model.train_batch(batch())
    calls: list[Callable[[], object]] = [
        lambda: utils.clip_grad_norm_(model.parameters(), 1.0),
        lambda: utils.clip_grad_norm_((p for p in model.parameters()), 1.0),
        lambda: utils.parameters_to_vector(model.parameters()),
        lambda: utils.vector_to_parameters(torch.zeros(83), model.parameters()),
    ]
    for call in calls:
        with pytest.raises(fleet.PlanError, match=r"torch\.nn\.utils .*2 of 4.*strategy\.clip"):
            call()


@world(2)
def test_a_penalty_over_some_parameters_is_refused() -> None:
    model = begun(penalty=0.1)
    optimized(model)
    with pytest.raises((fleet.PlanError, RuntimeError), match=r"penalty in the .*weight_decay of"):
        model.train_batch(batch())
