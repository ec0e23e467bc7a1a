"""Workers that compute one batch together, and one of which was given another."""

import contextlib
import logging
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import roles
from fleetx.api.same_samples import differ, prints
from fleetx.testing import world

BATCHES = 6
LAYOUTS: dict[str, dict[str, Any]] = {
    "pp": {
        "pipeline": True,
        "pipeline_configs": {"split": ["2"], "accumulate_steps": 2},
        "hybrid_configs": {"pp_degree": 2},
    },
    "tp": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"column": ["0"], "row": ["2"]},
        "hybrid_configs": {"mp_degree": 2},
    },
}


def batches(kind: str) -> list[tuple[Tensor, Tensor]]:
    """What this worker is given; the second one gets something else."""
    torch.manual_seed(0)
    found = [(torch.randn(4, 8), torch.randn(4, 2)) for _ in range(BATCHES)]
    if fleet.worker_index() == 0 or kind == "alike":
        return found
    if kind == "one is left out":
        return [*found[:2], *found[3:], found[0]]
    if kind == "inputs are drawn anew":  # as images that are turned at random
        return [(torch.randn(4, 8), targets) for _, targets in found]
    assert kind == "only what it uses"
    return [(torch.zeros(4, 8), targets) for _, targets in found]


def heard(layout: str, kind: str) -> list[str]:
    """What this worker warns of."""
    roles.stop()
    strategy = fleet.DistributedStrategy()
    for name, value in LAYOUTS[layout].items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    model: Any = fleet.distributed_model(net, criterion=F.mse_loss)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    said, ears = list[str](), logging.Handler(logging.WARNING)
    ears.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fleetx.api").addHandler(ears)
    for inputs, targets in batches(kind):
        if layout == "pp":
            model.train_batch((inputs, targets))
        else:
            optimizer.minimize(F.mse_loss(model(inputs), targets))
    logging.getLogger("fleetx.api").removeHandler(ears)
    return said


EXPECTED = {
    ("pp", "alike"): False,
    ("pp", "one is left out"): True,
    ("pp", "inputs are drawn anew"): False,
    ("pp", "only what it uses"): False,
    ("tp", "alike"): False,
    ("tp", "one is left out"): True,
    ("tp", "inputs are drawn anew"): True,
}


def test_a_worker_that_was_given_other_batches_is_named() -> None:
    for (layout, kind), wanted in EXPECTED.items():
        first, second = world(2, timeout=240).run(heard, layout, kind)
        assert second == [], "one of them says it"
        assert len(first) == wanted, (layout, kind, first)
        if kind == "one is left out":
            assert "at update 4 worker 0 and worker 1 of one " in first[0]


def reads_late() -> bool:
    """Of two pipelines that of workers 1 and 3 reads late; returns whether worker 0 saw it read."""
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.pipeline_configs = {"split": ["2"], "accumulate_steps": 2}
    strategy.hybrid_configs = {"pp_degree": 2, "dp_degree": 2}
    fleet.init(is_collective=True, strategy=strategy)
    barrier = roles.session.world("a test").barrier
    assert barrier is not None
    read = barrier.word

    def word(topic: str) -> str:
        with contextlib.suppress(dist.DistStoreError):
            barrier.store.wait(["worker 0 has left"], timedelta(seconds=1))
        found = read(topic)
        barrier.store.set("read", "")
        return found

    if fleet.worker_index() == 1:
        barrier.word = word  # type: ignore[method-assign]
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    model: Any = fleet.distributed_model(net, criterion=F.mse_loss)
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):  # the second update is compared
        model.train_batch((torch.ones(4, 8), torch.ones(4, 2)))
    seen = barrier.store.check(["read"])
    if fleet.worker_index() == 0:
        barrier.store.set("worker 0 has left", "")
    return seen


def test_worker_0_does_not_leave_with_the_store_that_another_still_reads() -> None:
    assert world(4, timeout=240).run(reads_late)[0]


def test_what_stands_for_a_tensor() -> None:
    large = torch.arange(100_000)
    other = large.clone()
    other[1:] += 1
    one, same, shifted = (prints({"ids": each}) for each in (large, large.clone(), other))
    assert one == same != shifted
    assert prints([torch.ones(5), torch.empty(0), "text"]) == ["", ""], "they say nothing"
    assert prints(large.view(10, -1)) != one
    nan = torch.tensor([float("nan"), 1.0], dtype=torch.bfloat16)
    assert prints(nan) == prints(nan.clone()) != [""]


@pytest.mark.parametrize(
    ("one", "other", "pp", "tp"),
    [
        (["a", "b"], ["a", "b"], False, False),
        (["a", "b"], ["a", "c"], False, True),
        (["a", "b"], ["d", "c"], True, True),
        (["a", ""], ["", "c"], False, False),
        ([], ["a"], False, False),
    ],
)
def test_when_two_differ(one: list[str], other: list[str], pp: bool, tp: bool) -> None:
    assert differ(one, other, "pp") is pp
    assert differ(one, other, "tp") is tp
