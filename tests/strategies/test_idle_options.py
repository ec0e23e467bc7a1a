"""Options that would have no effect next to others are refused, or said to rest."""

from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx.testing import world
from tests.strategies.paddle import start


def explained(**settings: Any) -> str:
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    return strategy.explain(workers=2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"amp": True, "amp_configs": {"dtype": "bfloat16", "use_dynamic_loss_scaling": False}},
            r"use_dynamic_loss_scaling'\] = False has no effect.*always 1. Leave it at True",
        ),
        (
            {
                "amp": True,
                "amp_configs": {"use_pure_bf16": True, "use_dynamic_loss_scaling": False},
            },
            r"use_dynamic_loss_scaling'\] = False has no effect",
        ),
        ({"dgc": True, "dgc_configs": {"rampup_step": 9}}, r"rampup_step'\] = 9 .* is one level"),
        (
            {"dgc": True, "dgc_configs": {"sparsity": [0.5, 0.75, 0.9, 0.99]}},
            r"no room for the 4 levels .* Set rampup_step to 4 or more",
        ),
        (
            {"localsgd": True, "localsgd_configs": {"begin_step": 30}},
            r"begin_step'\] = 30 .* leave begin_step at 1",
        ),
    ],
)
def test_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(fleet.PlanError, match=words):
        explained(**settings)


def test_every_level_is_reached_where_it_is_accepted() -> None:
    """The least number of updates that the refusal lets pass uses all of them."""
    levels = [0.5, 0.75, 0.9, 0.99]
    assert "dgc" in explained(dgc=True, dgc_configs={"sparsity": levels, "rampup_step": 3})
    reached = {levels[min(update * 4 // 3, 3)] for update in range(9)}
    assert reached == set(levels)


def merged() -> list[float]:
    """Updates of a user's own loop, which a plan that scales would not let pass."""
    start(gradient_merge=True)
    model = fleet.distributed_model(nn.Linear(1, 1, bias=False))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    found = []
    for _ in range(2):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(model.weight))
    return found


def test_groups_of_one_batch_rest_aloud() -> None:
    text = explained(gradient_merge=True)
    assert "At rest: strategy.gradient_merge, because gradient_merge_configs['k_steps'] = 1" in text
    assert "gradient_merge     is at rest" in text
    first, second = world(1).run(merged)[0]
    assert second == pytest.approx(first - 0.1)
