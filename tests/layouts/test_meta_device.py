"""Models that were made on the meta device: each rank makes its share, and all layouts the same."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx.plan.mesh import data_place
from fleetx.testing import world
from tests.layouts import transformer
from tests.layouts.test_layouts import Layout, layouts, strategy

STEPS = 2


class Transformer(transformer.Transformer):
    """Has a parameter of its own, and says how it begins."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.place, std=0.02)


def started(layout: Layout, extras: tuple[str, ...] = ()) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of the first steps, and the whole weights from before them."""
    fleet.init(is_collective=True, strategy=strategy(layout, extras))
    torch.manual_seed(7 + 10 * fleet.worker_index())  # that of worker 0 counts
    with torch.device("meta"):
        plain = Transformer(tied=True)
    model: Any = fleet.distributed_model(plain, criterion=transformer.loss)
    fleet.distributed_optimizer(transformer.OPTIMIZERS["sgd"](model.parameters()))
    begun = fleet.full_state_dict(model)
    place, shares = data_place(layout, fleet.worker_index())
    losses = []
    for number in range(STEPS):
        tokens, targets = transformer.batch(number)
        loss = model.train_batch((tokens.chunk(shares)[place], targets.chunk(shares)[place]))
        losses.append(float(fleet.util.all_reduce(loss.numpy())) / fleet.worker_num())
    return losses, begun


ONE = dict.fromkeys(("pp", "dp", "sharding", "tp"), 1)


def compare(layout: Layout, workers: int) -> None:
    losses, begun = world(workers, timeout=120).run(started, layout)[0]
    alone, weights = world(1).run(started, ONE)[0]
    assert list(begun) == list(weights)
    assert all(torch.equal(begun[name], weights[name]) for name in weights), layout
    assert losses == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("axis", ["pp", "dp", "sharding", "tp"])
def test_two_workers_begin_as_one(axis: str) -> None:
    compare(ONE | {axis: 2}, 2)


@pytest.mark.rare
@pytest.mark.parametrize("layout", layouts(4), ids=str)
def test_four_workers_begin_as_one(layout: Layout) -> None:
    compare(layout, 4)
