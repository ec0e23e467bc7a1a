"""Cut points that make the dearest part as cheap as it can be."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fleetx.strategies.pipeline import balance, parts, trace
from tests.strategies.pipeline.models import GPT, ResNet, check, followed, nothing_whole


def a_chain(depth: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(depth)))


@given(
    costs=st.lists(st.integers(0, 9), min_size=2, max_size=9),
    count=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_no_other_cut_is_better(costs: list[int], count: int) -> None:
    count = min(count, len(costs))
    graph = followed(a_chain(len(costs)))
    named = {f"_{number}": float(cost) for number, cost in enumerate(costs)}
    points = [int(point) for point in balance.points(graph, named, count)]

    def dearest(begins: tuple[int, ...]) -> int:
        bounds = zip((0, *begins), (*begins, len(costs)), strict=True)
        return max(sum(costs[begin:end]) for begin, end in bounds)

    assert len(points) == count - 1
    best = min(map(dearest, combinations(range(1, len(costs)), count - 1)))
    assert dearest(tuple(points)) == best
    assert len(parts.cut(graph, [str(point) for point in points])) == count


def test_too_few_layers() -> None:
    graph = followed(a_chain(2))
    with pytest.raises(ValueError, match=r"has 2 layers that could begin a stage, .* has 3 stages"):
        balance.points(graph, {}, 3)


def test_each_part_has_parameters() -> None:
    """An optimizer refuses a stage of nothing but an activation."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.ReLU())]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(8, 2))
    graph = followed(model)
    costs = {f"_{number}": 1.0 for number in range(10)}
    dear = costs | {"_4": 100.0}
    assert balance.points(graph, dear, 3) == ["4", "5"]
    assert balance.points(graph, dear, 3, model) == ["3", "5"]
    assert balance.points(graph, costs, 5, model) == balance.points(graph, costs, 5)
    with pytest.raises(ValueError, match=r"has 5 layers that .* and have parameters, .* 8 stages"):
        balance.points(graph, costs, 8, model)


def test_sizes_stand_for_costs_but_not_those_of_lookups() -> None:
    model = nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
    graph = followed(model)
    assert list(balance.sizes(model, graph).values()) == [0, 40, 0, 72]
    assert balance.points(graph, balance.sizes(model, graph), 2) == ["3"]


class Costs(nn.Module):
    """Runs one layer twice and another one in place."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.5)
        self.bn = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.one(self.two(self.one(x))))
        return self.three(self.drop(self.act(x)))


def test_layers_that_run_twice_or_in_place_begin_nothing() -> None:
    graph = followed(Costs(), {"x": torch.randn(4, 3)})
    assert balance.points(graph, {"two": 1.0, "bn": 1.0, "act": 9.0}, 2) == ["bn"]
    assert balance.points(graph, {}, 4) == ["bn", "drop", "three"]
    with pytest.raises(ValueError, match="has 4 layers"):
        balance.points(graph, {}, 5)


@pytest.mark.parametrize("by_name", [False, True])
def test_measuring_leaves_the_model_as_it_was(by_name: bool) -> None:
    model, x = Costs(), torch.randn(4, 3)
    kept = x.clone()
    graph = followed(model, {"x": x})
    dice, state = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    counted = balance.costs(model, graph, {"x": x} if by_name else (x,))
    assert set(counted) == {node.name for node in graph.nodes}
    assert all(value >= 0 for value in counted.values())
    assert torch.equal(torch.get_rng_state(), dice)
    assert torch.equal(x, kept)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_operations_and_bytes_are_counted() -> None:
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU())
    found = balance.costs(model, followed(model), (torch.randn(7, 3),))
    operations, weight, result = 2 * 7 * 3 * 5, 4 * 3 * 5, 4 * 7 * 5
    price = balance.OPERATIONS_PER_BYTE
    assert found == {
        "input_1": 0,
        "_0": operations + price * (weight + result),
        "_1": price * result,
        "output": 0,
    }


class Even(nn.Module):
    """Equal blocks between lookups and a tied head."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(depth)
        )
        self.head = nn.Linear(16, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, logits: bool = False) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x) if logits else x


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_equal_blocks_give_equal_stages_every_time(stages: int) -> None:
    model, sample = Even(8), {"ids": torch.randint(0, 100, (2, 5))}
    found = set()
    for _ in range(2):
        graph = trace.open_up(model, stages, trace.way_of(model, sample)).graph
        counted = balance.costs(model, graph, sample)
        found.add(tuple(balance.points(graph, counted, stages)))
    (points,) = found
    # A block of an eighth of the model is opened, and its first layer begins the stage.
    firsts = [point.removesuffix(".0") if stages == 8 else point for point in points]
    assert firsts == [f"blocks.{8 // stages * number}" for number in range(1, stages)]


def test_a_tied_weight_counts_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    graph = followed(model)
    counted = balance.costs(model, graph, (torch.randn(1, 4),))
    assert counted["_0"] - counted["_1"] == balance.OPERATIONS_PER_BYTE * 4 * 16
    assert list(balance.sizes(model, graph).values()) == [16, 0]


class Decides(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


def test_layers_that_decide_by_numbers_are_counted_by_their_parameters() -> None:
    model = nn.Sequential(Decides(2, 2), Decides(3, 3))
    graph = followed(model)
    assert balance.costs(model, graph, (torch.ones(1, 2),)) == {"_0": 6, "_1": 12}


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_from_a_model_to_its_stages(stages: int) -> None:
    gpt, resnet = GPT(), ResNet()
    text = {"ids": torch.randint(0, 11, (2, 5)), "mask": torch.randn(2, 1, 5, 5)}
    for model, inputs in ((gpt, text), (resnet, {"x": torch.randn(4, 3, 8, 8)})):
        opened = trace.open_up(model, stages, trace.way_of(model, inputs))
        whole, graph = opened.whole, opened.graph
        points = balance.points(graph, balance.costs(model, graph, inputs), stages)
        assert len(check(model, inputs, points, whole)) == stages


def test_every_layer_of_a_resnet_can_begin_a_stage_where_nothing_changes_in_place() -> None:
    model = ResNet()
    graph = followed(model, {"x": torch.randn(4, 3, 8, 8)}, nothing_whole)
    points = balance.points(graph, dict.fromkeys((n.name for n in graph.nodes), 1.0), 8)
    check(model, {"x": torch.randn(4, 3, 8, 8)}, points, nothing_whole)
