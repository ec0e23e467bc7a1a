"""``fleet.init(on_nan="stop")``: all workers stop before the update, and name what it was."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world

NAN, INF = float("nan"), float("inf")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return found


def batch(spoilt: bool) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 4)
    if spoilt:
        x[3, 1] = NAN
    return x, torch.randint(0, 2, (8,))


def trained(worker: int, settings: dict[str, Any], *, whole: bool = False) -> tuple[str, bool]:
    """Train until a batch of one worker is spoilt: the complaint, and whether weights are fine."""
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy, on_nan="stop")
    model = fleet.distributed_model(Net(), criterion=F.cross_entropy, sample=torch.zeros(2, 4))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        for step in range(4):
            x, y = batch(step == 2 and fleet.worker_index() == worker)
            if whole:
                model.train_batch((x, y))
            else:
                optimizer.minimize(F.cross_entropy(model(x), y))
    except FloatingPointError as error:
        whole_state = fleet.full_state_dict(model, everywhere=True)
        return str(error), all(bool(t.isfinite().all()) for t in whole_state.values())
    return "", True


PLANS: dict[str, dict[str, Any]] = {
    "data_parallel": {},
    "localsgd": {"localsgd": True, "localsgd_configs": {"k_steps": 4}},
    "sharding": {"sharding": True, "sharding_configs": {"stage": 3}},
    "bfloat16": {"amp": True, "amp_configs": {"dtype": "bfloat16"}},
}


@pytest.mark.parametrize("name", PLANS)
def test_all_workers_stop_with_the_step_and_the_culprit(name: str) -> None:
    for complaint, fine in world(2).run(trained, 1, PLANS[name]):
        assert "before update 3" in complaint
        assert "worker 1: the loss is nan" in complaint
        assert "worker 0: the loss" not in complaint
        assert "the gradient of 'first.weight'" in complaint
        assert fine, "the update was not made"


def test_stages_of_a_pipeline_stop_together() -> None:
    pipeline = {
        "pipeline": True,
        "pipeline_configs": {"accumulate_steps": 2, "split": ["second"]},
        "hybrid_configs": {"pp_degree": 2},
    }
    # Both stages are given the same batch; that of the first is computed with.
    for complaint, fine in world(2).run(trained, 0, pipeline, whole=True):
        assert "before update 3" in complaint
        assert "the gradient of 'first.weight'" in complaint
        assert fine


def overflowing(overflows: bool) -> list[str]:
    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    strategy.amp_configs = {"decr_every_n_nan_or_inf": 1, "init_loss_scaling": 4.0}
    fleet.init(is_collective=True, strategy=strategy, on_nan="stop")
    model = fleet.distributed_model(nn.Linear(2, 1))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    said = []
    for _ in range(4):
        loss = model(torch.ones(2, 2)).mean()
        if overflows:  # its gradients do; the loss is finite
            loss.register_hook(lambda gradient: gradient * INF)
        try:
            optimizer.minimize(loss)
            said.append("")
        except FloatingPointError as error:
            said.append(str(error))
            break
    return said


def test_an_overflow_that_amp_handles_stops_nothing_until_the_scale_cannot_fall() -> None:
    assert world(1).run(overflowing, False) == [["", "", "", ""]]
    (said,) = world(1).run(overflowing, True)
    assert said[:2] == ["", ""]  # at 4 and at 2 the update is skipped
    assert "before update 3" in said[2]


def going_on() -> int:
    fleet.init(is_collective=True)
    model = fleet.distributed_model(nn.Linear(2, 1))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.minimize(model(torch.full((2, 2), NAN)).mean())
    return int(model.weight.isnan().sum())


def test_without_the_flag_training_goes_on() -> None:
    assert world(1).run(going_on) == [2]
