"""What distributed_model() returns: the user's module, also to those who expect a wrapper."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world
from tests.engine.training import data, net

registered: list[type] = []


class Registered(nn.Module):
    """Keeps a register of its subclasses, as libraries of models do."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        registered.append(cls)


class Wrapper(Registered):
    """Has what a wrapper has, and finds the rest inside."""

    def __init__(self) -> None:
        super().__init__()
        self.module = net()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def no_sync(self) -> str:
        return "mine"

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.module(x)
        return found


@world(1)
def test_habits_of_ddp_are_answered_with_what_to_write_instead() -> None:
    fleet.init(is_collective=True)
    model: Any = fleet.distributed_model(net())
    with pytest.raises(AttributeError, match=r"'Sequential' object has no .*write model instead"):
        _ = model.module
    with pytest.raises(AttributeError, match=r"gradient_merge_configs = \{'k_steps': 4, 'avg'"):
        model.no_sync()
    with pytest.raises(AttributeError, match=r"^'Sequential' object has no attribute 'reducer'$"):
        _ = model.reducer
    assert not hasattr(model, "module")
    assert getattr(model, "no_sync", None) is None
    assert isinstance(model, nn.Sequential)
    assert repr(model) == repr(net())
    with pytest.raises(AttributeError, match=r"no attribute 'module'$"):
        _ = net().module


@world(1)
def test_attributes_of_the_users_own_are_left_alone() -> None:
    fleet.init(is_collective=True)
    model: Any = fleet.distributed_model(Wrapper())
    assert registered == [Wrapper], "no register of the user's has a class more"
    assert model.no_sync() == "mine"
    assert isinstance(model.module, nn.Sequential)
    assert model.training
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data(8)
    optimizer.minimize(F.cross_entropy(model(inputs), targets))


@world(2)
@pytest.mark.parametrize("stage", [2, 3])
def test_a_model_that_is_spread_has_them_too(stage: int) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.sharding = True
    strategy.sharding_configs = {"stage": stage}
    fleet.init(is_collective=True, strategy=strategy)
    model: Any = fleet.distributed_model(net())
    with pytest.raises(AttributeError, match="write model instead"):
        _ = model.module
    part = model[:2]  # which torch makes by calling the class
    assert len(part) == 2
    assert part[0] is model[0]
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data(8)
    optimizer.minimize(F.cross_entropy(model(inputs), targets))


def copies(model: nn.Module) -> list[nn.Module]:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    pickles = [pickle.loads(pickle.dumps(model, protocol)) for protocol in (0, 1, 2, 5)]
    loaded = torch.load(file, weights_only=False)
    return [copy.deepcopy(model), copy.copy(model), loaded, *pickles]


@world(1)
def test_copies_are_of_the_users_class_and_can_be_distributed() -> None:
    fleet.init(is_collective=True)
    for made in (net(), Wrapper()):
        model = fleet.distributed_model(made)
        for twin in copies(model):
            assert type(twin) is type(made).__bases__[1]
    twin = copy.deepcopy(model)
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(fleet.distributed_model(twin).parameters(), lr=0.1)
    )
    inputs, targets = data(8)
    optimizer.minimize(F.cross_entropy(twin(inputs), targets))


def trained(model: Any, parameters: Any, *, distribute: bool = True) -> Tensor:
    optimizer: Any = torch.optim.SGD(parameters, lr=0.1)
    if distribute:
        optimizer = fleet.distributed_optimizer(optimizer)
    inputs, targets = data(8)
    for _ in range(2):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in parameters])


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("workers", [1, 2])
def test_code_that_was_compiled_for_a_plain_model_is_for_no_distributed_one(workers: int) -> None:
    """Torch keeps it by classes and not by hooks, so that a batch would go past the plan."""
    world(workers).run(train_compiled)


def train_compiled() -> None:
    torch._dynamo.reset()
    fleet.init(is_collective=True)
    plain = compiled(net())
    expected = trained(plain, list(plain.parameters()), distribute=False)
    before = compiled(net())
    before(data(8)[0])
    inner = fleet.distributed_model(before._orig_mod)
    found = [trained(before, list(inner.parameters()))]
    outer = fleet.distributed_model(compiled(net()))
    found.append(trained(outer, list(outer.parameters())))
    for _ in range(2):
        model = fleet.distributed_model(net())
        found.append(trained(compiled(model), list(model.parameters())))
    twin = compiled(copy.deepcopy(fleet.distributed_model(net())))
    if fleet.is_first_worker():  # a copy is plain, and waits for nobody
        found.append(trained(twin, list(twin.parameters()), distribute=False))
    for weights in found:
        torch.testing.assert_close(weights, expected)
    torch._dynamo.reset()
