"""Stages that cannot be made alike are named, with what keeps them from it."""

import logging
from inspect import signature

import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx.strategies.pipeline import balance, trace, unevenness
from fleetx.testing import world

X = torch.randn(2, 8)


def remark(model: nn.Module, stages: int) -> str:
    sample = {next(iter(signature(type(model).forward).parameters.keys() - {"self"})): X}
    opened = trace.open_up(model, stages, trace.way_of(model, sample))
    costs = balance.sizes(model, opened.graph)
    points = balance.points(opened.graph, costs, stages)
    return unevenness.remark(opened.graph, costs, points, opened.refused, "parameters")


class Decides(nn.Module):
    """Two layers behind a decision that no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x) if x.sum() > 0 else x
        return found


class Again(nn.Module):
    """A layer that runs after each of the others, of which only the first can begin a stage."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.twice = nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.zeros_like(self.first(x)).add_(self.twice(self.twice(x)))
        last: Tensor = self.last(x)
        return last


def test_even_stages_are_not_spoken_of() -> None:
    assert remark(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), 2) == ""


def test_a_submodule_that_cannot_be_cut_inside_is_named_with_its_line() -> None:
    said = remark(nn.Sequential(Decides(), nn.Linear(8, 1)), 2)
    assert "stage 0 of 2 has 94% of the parameters, where an even share is 50%" in said
    assert "because '0' (94%) cannot be cut inside: " in said
    assert "if x.sum() > 0 else x" in said
    assert "\n" not in said


def test_one_large_layer_is_named() -> None:
    said = remark(nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 8)), 3)
    assert "because '1' (79%) is one call, and no stage can begin inside of it" in said


def test_layers_that_no_stage_may_separate_are_named() -> None:
    said = remark(Again(), 2)
    assert "no stage can begin between 'first' and 'twice'" in said


@world(2)
def test_the_first_rank_says_it() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.hybrid_configs = {"pp_degree": 2}
    fleet.init(is_collective=True, strategy=strategy)
    said = list[str]()
    listening = logging.Handler(logging.WARNING)
    listening.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fleetx").addHandler(listening)
    fleet.distributed_model(nn.Sequential(Decides(), nn.Linear(8, 1)), sample=X)
    logging.getLogger("fleetx").removeHandler(listening)
    found = [line for line in said if line.startswith("pipeline: stage 0 of 2")]
    assert len(found) == (fleet.worker_index() == 0)
