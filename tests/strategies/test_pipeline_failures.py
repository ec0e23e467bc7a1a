"""What fails on one stage stops all ranks that train with it, and none of them waits."""

from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor, nn

import fleetx as fleet
from fleetx.testing import world
from tests.strategies.test_pipeline_values import numbers, of, spread, start

REPLICAS = {"hybrid_configs": {"pp_degree": 2, "dp_degree": 2}}
SHARDED = {"sharding": True, "sharding_configs": {"stage": 2, "sharding_degree": 2}}


class Layer(nn.Module):
    """Fails in forward or backward, or leaves a parameter out, when a test says so."""

    trouble = ""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.often = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.trouble == "forward":
            raise ZeroDivisionError("in forward")
        found = self.always(x)
        if self.trouble != "unused":
            found = found + self.often(x)
        if found.requires_grad:
            found.register_hook(self._backward)
        return found

    def _backward(self, grad: Tensor) -> None:
        if self.trouble == "backward":
            raise ZeroDivisionError("in backward")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def begin(extras: dict[str, Any] | None = None, **configs: Any) -> tuple[Any, Any]:
    start("second", extras, **configs)
    net = of(Net)
    return net, spread(net, nn.functional.mse_loss, sample=DATA[0])


DATA = numbers(8, 4), numbers(8, 4, seed=5)


@world(2)
@pytest.mark.parametrize("mode", ["1F1B", "zero-bubble"])
def test_a_backward_that_fails_leaves_nobody_waiting(mode: str) -> None:
    for rank, stage in enumerate(("first", "second")):
        net, model = begin(schedule_mode=mode)
        getattr(net, stage).trouble = "backward"
        kind = ZeroDivisionError if fleet.worker_index() == rank else RuntimeError
        with pytest.raises(kind, match="in backward"):
            model.train_batch(DATA)
        getattr(net, stage).trouble = ""
        assert model.train_batch(DATA).isfinite()


CUT = {
    "tensor_parallel": True,
    "tensor_parallel_configs": {"tensor_parallel_degree": 2, "column": ["first.always"]},
}


def fails_alone(extras: dict[str, Any], trouble: str) -> None:
    net, model = begin(extras)
    model.train_batch(DATA)
    if dist.get_rank() == 1:
        net.first.trouble = trouble
    model.train_batch(DATA)


@pytest.mark.parametrize("trouble", ["forward", "backward"])
@pytest.mark.parametrize("extras", [SHARDED, CUT], ids=["sharding", "tensor_parallel"])
def test_a_rank_that_fails_inside_a_shared_stage_does_not_go_on(
    extras: dict[str, Any], trouble: str
) -> None:
    """The other rank of its stage waits for its part, and is freed when this process ends."""
    with pytest.raises(ZeroDivisionError, match=f"in {trouble}"):
        world(4).run(fails_alone, extras, trouble)


@world(4)
def test_pipelines_beside_one_that_fails_stop_with_it() -> None:
    """Ranks 0 and 2 are one pipeline, 1 and 3 the other, which fails."""
    fails = dist.get_rank() % 2 == 1
    net, model = begin(REPLICAS)
    for trouble in ("forward", "forward", "backward"):
        net.first.trouble = trouble if fails else ""
        with pytest.raises(Exception, match=f"in {trouble}" if fails else "in another pipeline"):
            model.train_batch(DATA)
        net.first.trouble = ""
        assert model.train_batch(DATA).isfinite()  # by the second time shapes are known
    odd = tuple(tensor[:7] for tensor in DATA)
    with pytest.raises(Exception, match="7 samples" if fails else "in another pipeline"):
        model.train_batch(odd if fails else DATA)
    assert model.train_batch(DATA).isfinite()


@world(4)
@pytest.mark.parametrize("extras", [REPLICAS, SHARDED], ids=["data_parallel", "sharding"])
def test_all_stages_refuse_an_update_that_one_cannot_make(extras: dict[str, Any]) -> None:
    net, model = begin(extras)
    told = "gave no gradient to 'second" if "sharding" in extras else "did not reach every param"
    for _ in range(2):
        model.train_batch(DATA)
        net.second.trouble = "unused"
        with pytest.raises(fleet.PlanError, match=told):
            model.train_batch(DATA)
        net.second.trouble = ""
    assert model.train_batch(DATA).isfinite()


@world(4)
def test_all_pipelines_refuse_an_update_that_one_cannot_make() -> None:
    net, model = begin(REPLICAS)
    fails = dist.get_rank() % 2 == 1
    net.first.trouble = "unused" if fails else ""
    told = "did not reach every parameter" if fails else "not possible in another pipeline"
    with pytest.raises(fleet.PlanError, match=told):
        model.train_batch(DATA)
    net.first.trouble = ""
    assert model.train_batch(DATA).isfinite()


@world(4)
def test_all_stages_refuse_what_was_thawed_on_one() -> None:
    net, model = begin(REPLICAS)
    model.train_batch(DATA)
    net.second.often.requires_grad_(False)
    with pytest.raises(fleet.PlanError, match="requires_grad of a parameter changed"):
        model.train_batch(DATA)
    net.second.often.requires_grad_(True)
    assert model.train_batch(DATA).isfinite()
