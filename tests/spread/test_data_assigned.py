"""``p.data = values`` and ``p.grad.data = values`` of tensors that workers share take effect."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fleetx as fleet
from fleetx.testing import world
from tests.spread.test_parts_written import laid_out
from tests.spread.test_whole_numbers import CUT, FIRST, SECOND, SHARDED, loss_of, mlp


def steps(model: Any, optimizer: Any) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        for p in model.parameters():
            p.grad.data = p.grad.data * 0.3  # as surgery on gradients does
        optimizer.step()
        kept = [p.data.clone() for p in model.parameters()]
        for p in model.parameters():
            p.data = p.data * 0.9  # as decay by hand and averages of weights do
        for p, before in zip(model.parameters(), kept, strict=True):
            p.data = (before + p.data) / 2
        model[0].weight.data = model[0].weight.data.clamp(-0.2, 0.2)
        model[2].bias.data = torch.arange(5.0)  # each worker has all of these


def trained(flags: dict[str, Any]) -> dict[str, Tensor]:
    model = laid_out(flags)
    steps(model, fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1)))
    return fleet.full_state_dict(model)


@pytest.mark.parametrize(
    "flags", [FIRST, SECOND, SHARDED, CUT], ids=["first", "second", "third", "cut"]
)
def test_assigned_numbers_are_those_of_one_process(flags: dict[str, Any]) -> None:
    """torch exchanged what stands around the numbers, and lost them without a word."""
    usual = mlp()
    steps(usual, torch.optim.SGD(usual.parameters(), lr=0.1))
    found, _ = world(2).run(trained, flags)
    torch.testing.assert_close(found, dict(usual.state_dict()), rtol=1e-5, atol=1e-5)


def by_vector() -> Tensor:
    model = laid_out(CUT)
    with torch.no_grad():
        flat = parameters_to_vector(model.parameters())
        vector_to_parameters(flat * 2, model.parameters())
        whole: Any = parameters_to_vector(model.parameters())
    return whole.full_tensor()


def test_vectors_of_cut_parameters_are_written_back() -> None:
    flat = nn.utils.parameters_to_vector(mlp().parameters()).detach()
    for found in world(2).run(by_vector):
        assert torch.equal(found, flat * 2)
