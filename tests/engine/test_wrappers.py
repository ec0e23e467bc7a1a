"""What scripts that were distributed by torch bring along, and losses that cannot be minimised."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel, DistributedDataParallel

import fleetx as fleet
from fleetx.testing import world
from tests.engine.training import data, net


def sharded(model: nn.Module) -> nn.Module:
    fully_shard(model)
    return model


WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DistributedDataParallel": DistributedDataParallel,
    "DataParallel": DataParallel,
    "submodule '0' is a DataParallel": lambda model: nn.Sequential(DataParallel(model)),
    "fully_shard": sharded,
}


@pytest.mark.parametrize("words", WRAPPED)
def test_a_model_that_torch_distributed_already_is_refused(words: str) -> None:
    # A script of DDP with the lines of fleet added trained to other weights, and nothing was said.
    def run() -> None:
        fleet.init(is_collective=True)
        with pytest.raises(fleet.PlanError, match=words):
            fleet.distributed_model(WRAPPED[words](net()))

    world(2).run(run)


def minimized(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    fleet.init(is_collective=True)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data(8)
    optimizer.minimize(loss(model(inputs), targets))


@world(1)
def test_a_loss_for_each_sample_is_answered_with_its_shape() -> None:
    with pytest.raises(ValueError, match=r"one number as loss, got a tensor of shape \[8\]; take"):
        minimized(lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"))


@world(1)
def test_a_loss_without_gradients_is_answered_with_what_cut_them_off() -> None:
    with pytest.raises(ValueError, match="depends on no parameter that is trained"):
        minimized(lambda outputs, targets: cross_entropy(outputs.detach(), targets))


@world(1)
def test_a_class_is_no_criterion() -> None:
    fleet.init(is_collective=True)
    with pytest.raises(TypeError, match=r"as criterion a function of outputs.*brackets"):
        fleet.distributed_model(net(), criterion=nn.CrossEntropyLoss)  # type: ignore[arg-type]
