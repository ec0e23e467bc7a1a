"""Optimizer state on the host: the memory it frees, and the numbers it does not change."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from fleetx.optim.lamb import Lamb
from fleetx.optim.lars import Lars
from fleetx.strategies.sharding.state_offload import OffloadedState
from tests.strategies.layerwise.layers import DEVICES, gradients, parameters

RULES: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda params: SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: Adam(params, lr=0.01),
    "adam foreach": lambda params: Adam(params, lr=0.01, foreach=True, amsgrad=True),
    "lars": lambda params: Lars(params, lr=0.1),
    "lamb": lambda params: Lamb(params, lr=0.01),
}


def step(optimizer: Optimizer, number: int) -> None:
    (group,) = optimizer.param_groups
    for param, grad in zip(group["params"], gradients(group["params"], number), strict=True):
        param.grad = grad
    optimizer.step()


def tensors(optimizer: Optimizer) -> list[Tensor]:
    """Those state tensors that are worth a journey."""
    values = [v for state in optimizer.state.values() for v in state.values()]
    return [v for v in values if isinstance(v, Tensor) and v.numel() > 1]


def held_bytes(optimizer: Optimizer) -> int:
    """Memory under the state tensors, on their device."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors(optimizer))


def full_bytes(optimizer: Optimizer) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(optimizer))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES)
def test_memory_is_given_back_between_updates_and_the_trajectory_stays(
    rule: str, device: str
) -> None:
    ours, theirs = parameters(device), parameters(device)
    optimizer, plain = RULES[rule](ours), RULES[rule](theirs)
    offloaded = OffloadedState(optimizer)
    assert offloaded.waiting_bytes == 0
    seen: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(held_bytes(optimizer)))
    for number in range(5):
        step(optimizer, number)
        step(plain, number)
        assert held_bytes(optimizer) == 0
        assert offloaded.waiting_bytes == full_bytes(optimizer) == held_bytes(plain) > 0
    assert seen[1:] == [held_bytes(plain)] * 4, "it is back when the rule runs"
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
def test_the_device_has_the_memory_for_others() -> None:
    params = [nn.Parameter(torch.zeros(2**20, device="cuda")) for _ in range(8)]
    optimizer = Adam(params, foreach=False)
    offloaded = OffloadedState(optimizer)
    for param in params:
        param.grad = torch.ones_like(param)
    gc.collect()  # what other tests left would go at any time
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        optimizer.step()
        assert torch.cuda.memory_allocated() - before < 2**16
    assert offloaded.waiting_bytes == 2 * 8 * 2**22
    state: Any = optimizer.state[params[0]]
    assert all(buffer.is_pinned() for buffer in offloaded._buffers.values())
    offloaded.fetch()
    assert torch.cuda.memory_allocated() - before >= 2 * 8 * 2**22
    torch.testing.assert_close(state["exp_avg"], torch.full_like(params[0], 1 - 0.9**3))


@pytest.mark.parametrize("device", DEVICES)
def test_memory_on_the_host_is_taken_once(device: str) -> None:
    optimizer = RULES["adam"](parameters(device))
    offloaded = OffloadedState(optimizer)
    step(optimizer, 0)
    first = {id(buffer) for buffer in offloaded._buffers.values()}
    step(optimizer, 1)
    assert {id(buffer) for buffer in offloaded._buffers.values()} == first


def test_single_numbers_stay() -> None:
    optimizer = RULES["adam"](parameters())
    OffloadedState(optimizer)
    step(optimizer, 0)
    assert [float(state["step"]) for state in optimizer.state.values()] == [1.0] * len(
        optimizer.state
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES)
def test_a_checkpoint_has_the_values_and_continues_elsewhere(rule: str, device: str) -> None:
    ours, theirs = parameters(device), parameters(device)
    optimizer, plain = RULES[rule](ours), RULES[rule](theirs)
    offloaded = OffloadedState(optimizer)
    for number in range(2):
        step(optimizer, number)
        step(plain, number)
    saved = copy.deepcopy(optimizer.state_dict())
    assert offloaded.waiting_bytes == 0, "everything is on the device now"
    torch.testing.assert_close(saved["state"], plain.state_dict()["state"], rtol=0, atol=0)
    fresh = RULES[rule](ours)
    waiting = OffloadedState(fresh)
    fresh.load_state_dict(saved)
    waiting.send()
    assert held_bytes(fresh) == 0
    assert waiting.waiting_bytes == full_bytes(fresh) > 0
    torch.testing.assert_close(saved["state"], plain.state_dict()["state"], rtol=0, atol=0)
    for number in range(2, 5):
        step(fresh, number)
        step(plain, number)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES)
def test_states_may_be_loaded_over_others_and_over_their_own(rule: str, device: str) -> None:
    ours, theirs = parameters(device), parameters(device)
    optimizer, plain = RULES[rule](ours), RULES[rule](theirs)
    OffloadedState(optimizer)
    for each in (optimizer, plain):
        step(each, 0)
        kept = copy.deepcopy(each.state_dict())
        step(each, 1)
        each.load_state_dict(kept)
        step(each, 2)
        # As torch has it, this state is the live one: it moves with the steps that follow.
        live = each.state_dict()
        step(each, 3)
        each.load_state_dict(live)
        step(each, 4)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


class Sharing(SGD):
    """A rule that keeps, besides its momentum, things that lie in memory of others."""

    def share(self) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                buffer = self.state[param]["momentum_buffer"]
                pool = torch.arange(2.0 * param.numel(), device=param.device)
                self.state[param] |= {
                    "twin": buffer.view(-1),
                    "low": pool[: param.numel()],
                    "high": pool[param.numel() :],
                    "weights": param.detach(),
                    "last": param.grad,
                    "wide": torch.ones(1, device=param.device).expand(5),
                }


@pytest.mark.parametrize("device", DEVICES)
def test_what_lies_in_memory_of_others_stays_whole(device: str) -> None:
    param = nn.Parameter(torch.arange(6.0, device=device).view(2, 3))
    param.grad = torch.ones_like(param)
    optimizer = Sharing([param], lr=1.0, momentum=0.5)
    offloaded = OffloadedState(optimizer)
    optimizer.step()
    offloaded.fetch()
    optimizer.share()
    offloaded.send()
    state: Any = optimizer.state[param]
    assert torch.equal(param.cpu(), torch.arange(6.0).view(2, 3) - 1)
    assert torch.equal(state["weights"], param)
    assert torch.equal(param.grad, torch.ones_like(param))
    assert state["low"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert state["high"].tolist() == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    assert state["wide"].tolist() == [1.0] * 5
    assert state["momentum_buffer"].untyped_storage().nbytes() == 0
    offloaded.fetch()
    assert torch.equal(state["momentum_buffer"], torch.ones_like(param))
    assert state["twin"].untyped_storage().data_ptr() == state["momentum_buffer"].data_ptr()
    optimizer.step()
    offloaded.fetch()
    assert torch.equal(state["twin"].cpu(), torch.full((6,), 1.5))


def test_sending_and_fetching_twice_changes_nothing() -> None:
    optimizer = RULES["momentum"](parameters())
    offloaded = OffloadedState(optimizer)
    step(optimizer, 0)
    offloaded.send()
    waiting = offloaded.waiting_bytes
    assert waiting == full_bytes(optimizer)
    offloaded.fetch()
    values = [tensor.clone() for tensor in tensors(optimizer)]
    offloaded.fetch()
    assert all(map(torch.equal, tensors(optimizer), values))
    offloaded.send()
    offloaded.fetch()
    assert all(map(torch.equal, tensors(optimizer), values))


def test_a_parameter_that_joins_later_waits_too() -> None:
    """A gradient that was missing at first makes state later."""
    first, second = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(6))
    optimizer = SGD([first, second], lr=0.1, momentum=0.9)
    offloaded = OffloadedState(optimizer)
    first.grad = torch.ones(4)
    optimizer.step()
    assert offloaded.waiting_bytes == 16
    second.grad = torch.ones(6)
    optimizer.step()
    assert offloaded.waiting_bytes == 40
