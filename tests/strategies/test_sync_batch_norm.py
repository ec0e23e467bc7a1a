"""Batch norm over all workers: the numbers of one process, and the exchanges it takes."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F

import fleetx as fleet
from fleetx import PlanError, roles
from fleetx.plan.job import Job
from fleetx.strategies.sync_batch_norm import SyncBatchNorm
from fleetx.testing import world
from tests.engine.training import spread, weights

SAMPLES = 12


def net(**options: Any) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4, **options),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 9, 5),
        nn.BatchNorm1d(5, **options),
        nn.Linear(5, 3),
    )


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    # Samples differ a lot, so the statistics of one worker are far from those of all.
    inputs = torch.randn(SAMPLES, 2, 3, 3, generator=generator)
    inputs += torch.arange(SAMPLES).view(-1, 1, 1, 1) / 4
    return inputs, torch.randint(0, 3, (SAMPLES,), generator=generator)


def start(*, on: bool = True, **settings: Any) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.sync_batch_norm = on
    for name, value in settings.items():
        setattr(strategy, name, value)
    roles.stop()  # a model of the job before may still be there
    fleet.init(is_collective=True, strategy=strategy)


def train(model: nn.Module, optimizer: Any, split: list[int], steps: int = 3) -> None:
    inputs, targets = data()
    rank = dist.get_rank()
    x, y = inputs.split(split)[rank], targets.split(split)[rank]
    for _ in range(steps):
        # Workers' gradients are averaged: the mean over all samples, whatever the split.
        share = len(split) / SAMPLES
        optimizer.minimize(F.cross_entropy(model(x), y, reduction="sum") * share)


def plain(model: nn.Module, steps: int = 3) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = data()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return model


def close(ours: nn.Module, theirs: nn.Module) -> None:
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=2e-5, atol=2e-6, msg=name)


@world(2)
@pytest.mark.parametrize("split", [[6, 6], [8, 4], [11, 1]], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.1}],
    ids=str,
)
def test_workers_train_as_one_process_on_all_samples(
    split: list[int], options: dict[str, Any]
) -> None:
    start()
    model = fleet.distributed_model(net(**options))
    train(model, fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1)), split)
    close(model, plain(net(**options)))


@world(2)
def test_without_the_switch_workers_normalise_alone() -> None:
    start(on=False)
    model = fleet.distributed_model(net())
    train(model, fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1)), [6, 6])
    alone, together = weights(model), weights(plain(net()))
    assert (alone - together).abs().max() > 1e-3


@world(2)
def test_running_statistics_that_were_switched_off_later_stay() -> None:
    start()
    model = net()
    for layer in (model[1], model[5]):
        assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
        layer.track_running_stats = False
    before = copy.deepcopy(dict(model.named_buffers()))
    fleet.distributed_model(model)
    train(model, fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1)), [6, 6])
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


@world(4)
def test_four_workers() -> None:
    start()
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, [1, 2, 4, 5])
    close(model, plain(net()))
    assert spread(weights(model)) == 0


@world(2)
def test_evaluation_uses_the_running_statistics_and_sends_none() -> None:
    start()
    model = fleet.distributed_model(net())
    twin = copy.deepcopy(model).eval()
    model.eval()
    with CommDebugMode() as counted, torch.no_grad():
        found = model(data()[0])
    assert counted.get_total_counts() == 0
    assert torch.equal(found, twin(data()[0]))


@world(2)
def test_two_collectives_per_layer_and_step() -> None:
    def counts(on: bool) -> dict[str, int]:
        start(on=on)
        model = fleet.distributed_model(net())
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        train(model, optimizer, [6, 6], steps=2)
        with CommDebugMode() as counted:
            train(model, optimizer, [6, 6], steps=1)
        return {str(kind): count for kind, count in counted.get_comm_counts().items() if count}

    without, found = counts(False), counts(True)
    assert found.pop("c10d.allgather_") == 2
    assert found.pop("c10d.allreduce_") == without.pop("c10d.allreduce_") + 2
    assert found == without


@world(2)
def test_module_names_classes_and_hooks_stay() -> None:
    start()
    model, called = net(), []
    layers = list(model)
    model[1].register_forward_hook(lambda *_: called.append(1))
    assert fleet.distributed_model(model) is model
    assert list(model) == layers
    assert [type(m) for m in model] == [type(m) for m in net()]
    model(data()[0])
    assert called == [1]
    with pytest.raises(ValueError, match="expected 4D input"):
        model[1](torch.ones(2, 4))


@world(2)
def test_a_model_that_is_a_batch_norm() -> None:
    start()
    model = nn.BatchNorm1d(3)
    assert fleet.distributed_model(model) is model
    rank = dist.get_rank()
    x = torch.arange(24.0).view(8, 3).square()
    expected = nn.BatchNorm1d(3)(x).chunk(2)[rank]
    torch.testing.assert_close(model(x.chunk(2)[rank]), expected, rtol=1e-6, atol=1e-6)


@world(2)
def test_held_batches() -> None:
    start(gradient_merge=True, gradient_merge_configs={"k_steps": 2, "avg": True})
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, [6, 6], steps=4)
    reference = net()
    ours = torch.optim.SGD(reference.parameters(), lr=0.1)
    inputs, targets = data()
    for step in range(4):
        (F.cross_entropy(reference(inputs), targets) / 2).backward()
        if step % 2:
            ours.step()
            ours.zero_grad()
    close(model, reference)


@world(2)
def test_next_to_amp() -> None:
    start(amp=True, amp_configs={"use_pure_bf16": True})
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, [8, 4])
    assert spread(weights(model)) == 0
    mean = model[1].running_mean
    assert isinstance(mean, Tensor)
    theirs = plain(net())[1].running_mean  # type: ignore[index]
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean, theirs, rtol=3e-2, atol=3e-2)


def test_one_worker_has_nothing_to_synchronise() -> None:
    start()
    model = fleet.distributed_model(net())
    assert all("forward" not in vars(layer) for layer in model)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_without_batch_norm_is_refused(workers: int) -> None:
    def attempt() -> None:
        start()
        fleet.distributed_model(nn.Linear(2, 2))

    with pytest.raises(PlanError, match="would change nothing: the model has no BatchNorm"):
        world(workers).run(attempt)


class Activated(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


@world(2)
def test_a_layer_with_its_own_forward_is_refused() -> None:
    start()
    with pytest.raises(PlanError, match="'1': Activated has a forward of its own"):
        fleet.distributed_model(nn.Sequential(nn.Linear(2, 2), Activated(2)))
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    again = copy.deepcopy(fleet.distributed_model(copy.deepcopy(model)))
    assert fleet.distributed_model(again), "a copy has the forward of the class, as it says itself"
    plain = model[1].forward
    model[1].forward = lambda x: plain(x).relu()
    with pytest.raises(PlanError, match="'1': BatchNorm1d has a forward of its own"):
        fleet.distributed_model(model)


def test_the_plan_tells_what_is_sent() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.sync_batch_norm = True
    told = strategy.explain(net(), workers=4)
    assert (
        "all-gather of mean and variance per BatchNorm channel in each training forward, 24 B"
        in told
    )
    assert (
        "all-reduce of two sums of gradients per BatchNorm channel in each backward, 12 B" in told
    )
    assert "BatchNorm" not in strategy.explain(net(), workers=1)


@world(4)
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 2, 2, 1), [[0, 1, 2, 3]]),
        ((2, 1, 2, 1), [[0, 1], [2, 3]]),
        ((1, 1, 2, 2), [[0, 2], [1, 3]]),
        ((1, 2, 1, 2), [[0, 2], [1, 3]]),
    ],
    ids=str,
)
def test_ranks_that_see_other_samples_form_the_group(
    sizes: tuple[int, ...], expected: list[list[int]]
) -> None:
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("pp", "dp", "sharding", "tp"))
    model, rank = nn.BatchNorm1d(1), dist.get_rank()
    SyncBatchNorm().model(model, Job(device=torch.device("cpu"), mesh=mesh, model=model))
    model(torch.tensor([[10.0**rank], [10.0**rank]]))
    (group,) = (ranks for ranks in expected if rank in ranks)
    mean = sum(10.0**other for other in group) / len(group)
    assert model.running_mean is not None
    assert model.running_mean.item() == pytest.approx(0.1 * mean)
