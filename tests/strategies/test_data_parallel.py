"""Data parallel: Paddle's trajectories, and options whose effect is counted."""

import logging
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F

import fleetx as fleet
from fleetx.comm import pairwise
from fleetx.testing import world
from tests.engine.training import data, net, plain, spread, weights
from tests.strategies.paddle import check_two_workers, start


@pytest.mark.parametrize("name", ["dist_dp_sgd", "dist_dp_momentum"])
def test_trajectories_are_those_of_paddle(name: str) -> None:
    check_two_workers(name)


def all_reduces(settings: dict[str, Any], width: int) -> int:
    """How many all-reduces one step takes, after DDP has settled its buckets."""
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1))
    fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        with CommDebugMode() as counted:
            optimizer.minimize(model(torch.ones(2, width, requires_grad=True)).sum())
    counts = {str(kind): count for kind, count in counted.get_comm_counts().items()}
    return counts["c10d.allreduce_"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1),
        ({"fuse_grad_size_in_MB": 1}, 2),  # two layers of 1 MiB fill one bucket each
        ({"fuse_all_reduce_ops": False}, 6),  # one per tensor
    ],
)
def test_fusion_decides_the_number_of_all_reduces(settings: dict[str, Any], expected: int) -> None:
    assert world(2).run(all_reduces, settings, width=512) == [expected] * 2


class Forked(nn.Module):
    """Each batch leaves one of two layers unused."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return self.left(x) if left else self.right(x)


@world(2)
@pytest.mark.parametrize("found", [True, False])
def test_find_unused_parameters_is_in_force(found: bool) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.find_unused_parameters = found
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(Forked())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    mine = slice(fleet.worker_index(), None, 2)

    def run() -> None:
        for step in range(4):
            output = model(inputs[mine], left=step % 2 == 0)
            optimizer.minimize(F.cross_entropy(output, targets[mine]))

    if found:
        run()
        assert spread(weights(model)) == 0
    else:
        with pytest.raises(fleet.PlanError, match=r"set strategy\.find_unused_parameters = True"):
            run()


@world(2)
def test_tools_that_follow_the_module_tree_see_the_model_once() -> None:
    fleet.init(is_collective=True)
    model = fleet.distributed_model(net())
    assert [name for name, _ in model.named_modules()] == [n for n, _ in net().named_modules()]
    with CommDebugMode():
        model(torch.ones(2, 6))


def trained(workers: int, settings: dict[str, Any]) -> list[Tensor]:
    return world(workers).run(train_with, settings)


def train_with(settings: dict[str, Any]) -> Tensor:
    start(**settings)
    model = fleet.distributed_model(net(seed=fleet.worker_index()))
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    )
    inputs, targets = data()
    for step in range(4):
        at = (torch.arange(step * 16, step * 16 + 16) % len(inputs))[
            fleet.worker_index() :: fleet.worker_num()
        ]
        optimizer.minimize(F.cross_entropy(model(inputs[at]), targets[at]))
    assert spread(weights(model)) == 0
    return weights(model)


HIERARCHICAL = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        (HIERARCHICAL, 1e-6),
        (HIERARCHICAL | {"fuse_all_reduce_ops": False}, 1e-6),
        (HIERARCHICAL | {"fp16_allreduce": True}, 1e-3),
        ({"nccl_comm_num": 3, "fuse_all_reduce_ops": False}, 1e-6),
    ],
)
def test_other_ways_to_reduce_give_the_same_mean(
    settings: dict[str, Any], tolerance: float
) -> None:
    for found in trained(4, settings):
        torch.testing.assert_close(
            found, plain("momentum", 16, steps=4), rtol=tolerance, atol=tolerance
        )


def levels() -> list[tuple[str, int]]:
    """Collective and ranks in it, for the exchange of one step."""
    start(**HIERARCHICAL)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    seen: list[tuple[str, int]] = []
    homes: list[tuple[Any, str]] = [
        (pairwise, "reduce_scatter"),
        (dist, "all_reduce"),
        (pairwise, "all_gather"),
    ]
    real = {name: getattr(home, name) for home, name in homes}

    def counting(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            group = kwargs["group"] if "group" in kwargs else args[-1]
            seen.append((name, dist.get_world_size(group)))
            return real[name](*args, **kwargs)

        return call

    try:
        for home, name in homes:
            setattr(home, name, counting(name))
        optimizer.minimize(model(torch.ones(2, 6)).sum())
    finally:
        for home, name in homes:
            setattr(home, name, real[name])
    return seen


def test_a_hierarchical_all_reduce_has_two_levels() -> None:
    expected = [("reduce_scatter", 2), ("all_reduce", 2), ("all_gather", 2)]
    assert world(4).run(levels) == [expected] * 4


def channels(count: int) -> int:
    """How many process groups the all-reduces of one step are dealt to."""
    start(nccl_comm_num=count, fuse_all_reduce_ops=False)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    used, real = set(), dist.all_reduce

    def counting(*args: Any, **kwargs: Any) -> Any:
        used.add(kwargs["group"])
        return real(*args, **kwargs)

    for _ in range(2):
        dist.all_reduce = counting
        try:
            optimizer.minimize(model(torch.ones(2, 6)).sum())
        finally:
            dist.all_reduce = real
    return len(used)


def said(**settings: Any) -> list[str]:
    """What is said of communicators while three batches are trained."""
    heard, ear = list[str](), logging.Handler()
    ear.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fleetx").addHandler(ear)
    try:
        start(**settings)
        model = fleet.distributed_model(net())
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            optimizer.minimize(model(torch.ones(2, 6)).sum())
    finally:
        logging.getLogger("fleetx").removeHandler(ear)
    return [line for line in heard if "nccl_comm_num" in line]


def test_communicators_that_nothing_is_dealt_to_are_named_once() -> None:
    (line,), others = world(2).run(partial(said, nccl_comm_num=2))
    assert line.startswith("At rest: 1 of the 2 communicators of strategy.nccl_comm_num, because")
    assert "in 1 bucket and each goes to one of them; set nccl_comm_num = 1" in line
    assert others == []
    settings = {"nccl_comm_num": 2, "fuse_all_reduce_ops": False}
    assert world(2).run(partial(said, **settings)) == [[], []]


def test_communicators_are_dealt_round_robin() -> None:
    assert world(2).run(channels, 2) == [2, 2]
    assert world(2).run(channels, 3) == [3, 3]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_hierarchical_allreduce": True}, r"into equal blocks.*to one of \[2\]"),
        (HIERARCHICAL | {"hierarchical_allreduce_inter_nranks": 3}, "into equal blocks"),
        (HIERARCHICAL | {"hierarchical_allreduce_inter_nranks": 4}, "into equal blocks"),
        (HIERARCHICAL | {"nccl_comm_num": 2}, "leave nccl_comm_num at 1"),
        ({"hierarchical_allreduce_inter_nranks": 2}, "needs strategy.use_hierarchical_allreduce"),
        ({"fuse_all_reduce_ops": False, "fuse_grad_size_in_MB": 4}, "False has none"),
        ({"dgc": True, "nccl_comm_num": 2}, "exchanges them in its own way"),
        (HIERARCHICAL | {"dgc": True}, "exchanges them in its own way"),
    ],
)
def test_options_without_effect_are_refused_before_anything_runs(
    settings: dict[str, Any], words: str
) -> None:
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    with pytest.raises(fleet.PlanError, match=words):
        strategy.explain(workers=4)


@pytest.mark.parametrize("option", ["sync_nccl_allreduce", "last_comm_group_size_MB"])
def test_options_that_cannot_be_in_force_are_refused(option: str) -> None:
    strategy = fleet.DistributedStrategy()
    setattr(strategy, option, False if option.startswith("sync") else 4.0)
    with pytest.raises(fleet.PlanError, match=f"strategy.{option} = .* cannot be in force"):
        strategy.explain(workers=2)


def two_losses(order: str, **settings: Any) -> Tensor:
    """Train with two losses per update, in an order of forwards (f) and backwards (b)."""
    start(**settings)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, _ = data()
    halves = list(inputs[fleet.worker_index() :: 2].chunk(2))
    for _ in range(2):
        losses, left = [], [*halves]
        for verb in order:
            if verb == "f":
                losses.append(model(left.pop(0)).pow(2).mean())
            else:
                optimizer.backward(losses.pop(0))
        if losses:
            optimizer.backward(torch.stack(losses).sum())
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


FOUND = pytest.mark.parametrize("found", [True, False], ids=["find_unused", ""])


@FOUND
def test_two_losses_go_backward_together_or_one_after_the_other(found: bool) -> None:
    reference = net()
    rule = torch.optim.SGD(reference.parameters(), lr=0.1)
    inputs, _ = data()
    for _ in range(2):
        parts = [part for rank in range(2) for part in inputs[rank::2].chunk(2)]
        torch.stack([reference(part).pow(2).mean() for part in parts]).sum().div(2).backward()
        rule.step()
        rule.zero_grad()
    for order in ("ff", "fbfb"):
        for result in world(2).run(two_losses, order, find_unused_parameters=found):
            torch.testing.assert_close(result, weights(reference), rtol=1e-6, atol=1e-6)


@world(2)
@FOUND
def test_two_backwards_after_two_forwards_are_refused(found: bool) -> None:
    with pytest.raises(fleet.PlanError, match=r"only the first is exchanged.*add the losses up"):
        two_losses("ffbb", find_unused_parameters=found)


@world(2)
@FOUND
def test_two_backwards_after_one_forward_are_refused_before_the_update(found: bool) -> None:
    start(find_unused_parameters=found)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    before = weights(model)
    output = model(data()[0])
    output[:, 0].mean().backward(retain_graph=True)
    output[:, 1].mean().backward()
    with pytest.raises(fleet.PlanError, match="only the first is exchanged"):
        optimizer.step()
    assert torch.equal(weights(model), before)


@world(2)
def test_two_backwards_are_fine_where_nothing_is_exchanged() -> None:
    start(gradient_merge=True, gradient_merge_configs={"k_steps": 2})
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, _ = data()
    first, second = (model(part).mean() for part in inputs.chunk(2))
    optimizer.backward(first)
    optimizer.backward(second)
    optimizer.step()
    optimizer.minimize(model(inputs).mean() * (1 + fleet.worker_index()))
    assert spread(weights(model)) == 0


@world(2)
def test_a_last_batch_that_misses_parameters_is_refused_before_the_update() -> None:
    start()
    model = fleet.distributed_model(Forked())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    before = weights(model)
    optimizer.backward(model(data()[0], left=True).sum())
    with pytest.raises(fleet.PlanError, match=r"set strategy\.find_unused_parameters = True"):
        optimizer.step()
    assert torch.equal(weights(model), before)
