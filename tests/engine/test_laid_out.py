"""A model whose parameters are exchanged under our hands stops with a sentence, on every worker."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world
from tests.engine.training import data, net

PLANS: dict[str, dict[str, Any]] = {
    "replicas": {},
    "stage 3": {"sharding": True},
    "stage 2": {"sharding": True, "sharding_configs": {"stage": 2}},
    "tensors": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"tensor_parallel_degree": 2, "column": ["0"], "row": ["2"]},
    },
    "local": {"localsgd": True},
}
Deed = Callable[[Any], Any]


def assigned(model: Any) -> None:
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


def new_layer(model: Any) -> None:
    model[4] = nn.Linear(16, 3)


def new_parameter(model: Any) -> None:
    model[4].weight = nn.Parameter(model[4].weight.detach().clone())


def reparametrized(model: Any) -> None:
    nn.utils.parametrizations.weight_norm(model[4])


DEEDS: dict[str, Deed] = {
    "double": lambda model: model.double(),
    "half": lambda model: model.half(),
    "to": lambda model: model.to(torch.bfloat16),
    "assigned": assigned,
    "new layer": new_layer,
    "new parameter": new_parameter,
    "reparametrized": reparametrized,
    "added": lambda model: model.append(nn.Linear(3, 3, bias=False)),
    "resized": lambda model: setattr(model[4].weight, "data", torch.zeros(5, 16)),
    "removed": lambda model: model.pop(4),
    "filled": lambda model: model.__setitem__(1, nn.Linear(16, 16)),
}

SENTENCES = {
    "assigned": r"replaced: 0\.weight, 0\.bias, 2\.weight, 2\.bias and 2 more\).*assign=True",
    "new layer": r"replaced: 4\.weight, 4\.bias\).*Replace a head",
    "new parameter": r"replaced: 4\.weight\)",
    "reparametrized": r"new: .*original0.*gone: 4\.weight\)",
    "added": r"new: 5\.weight\)",
    "resized": r"had the shape \[3, 16\] in .* and has \[5, 16\] now.*Resize embeddings",
    "removed": r"gone: 4\.weight, 4\.bias\)",
    "filled": r"new: 1\.weight, 1\.bias\)",
}
"""What is said of each; the others are about formats."""


def begun(flags: dict[str, Any]) -> tuple[Any, Any]:
    strategy = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(net())
    return model, fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))


def batch(model: Any, optimizer: Any) -> None:
    x, y = (part[:8] for part in data())
    optimizer.minimize(F.cross_entropy(model(x), y))


@world(2)
@pytest.mark.parametrize("plan", PLANS)
def test_what_detaches_parameters_is_noticed(plan: str) -> None:
    for deed in ("double", "assigned", "new layer", "added", "filled"):
        model, optimizer = begun(PLANS[plan])
        batch(model, optimizer)
        DEEDS[deed](model)
        with pytest.raises(RuntimeError, match=r"was .* fleet\.distributed_model\(\)"):
            batch(model, optimizer)


@world(1)
@pytest.mark.parametrize("deed", DEEDS)
def test_every_way_to_do_so_has_its_sentence(deed: str) -> None:
    model, optimizer = begun({})
    batch(model, optimizer)
    DEEDS[deed](model)
    sentence = SENTENCES.get(deed, "Convert the model before")
    with pytest.raises(RuntimeError, match=sentence):
        batch(model, optimizer)


@world(1)
def test_it_is_noticed_before_there_is_an_optimizer() -> None:
    fleet.init(is_collective=True)
    model = fleet.distributed_model(net()).double()
    with pytest.raises(RuntimeError, match="Convert the model before"):
        fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))


@world(2)
@pytest.mark.parametrize("plan", PLANS)
def test_a_head_that_is_replaced_too_late_is_no_matter_of_unused_parameters(plan: str) -> None:
    """As fine-tuning does it, with an optimizer of the whole model, of the head, or torch's own."""
    for distribute in (True, False):
        strategy = fleet.DistributedStrategy()
        for name, value in PLANS[plan].items():
            setattr(strategy, name, value)
        fleet.init(is_collective=True, strategy=strategy)
        model = fleet.distributed_model(net())
        model[4] = nn.Linear(16, 5)
        optimizer: Any = torch.optim.SGD(model[4].parameters(), lr=0.1)
        if distribute:
            optimizer = fleet.distributed_optimizer(optimizer)
        with pytest.raises(RuntimeError, match=r"was changed after .*replaced: 4\.weight, 4\.bias"):
            model(data()[0][:8])


@world(2)
@pytest.mark.parametrize("plan", PLANS)
def test_what_leaves_parameters_in_place_is_no_reason_to_stop(plan: str) -> None:
    model, optimizer = begun(PLANS[plan])
    batch(model, optimizer)
    model.load_state_dict(model.state_dict())
    model.float()
    model.eval()
    with torch.no_grad():
        model(data()[0][:2])
    model.train()
    batch(model, optimizer)
    fleet.load_full_state_dict(model, fleet.full_state_dict(model, everywhere=True))
    batch(model, optimizer)
    model[1] = nn.ReLU()
    model.append(nn.Dropout(0.1))
    model.append(nn.Linear(3, 3).requires_grad_(False))
    batch(model, optimizer)
    model.eval()
    with torch.no_grad():
        model(data()[0][:2])
    batch(model, optimizer)
