"""Which layers multiply in float8, and what is said of the others."""

from collections import OrderedDict

import pytest
from torch import Tensor, nn
from typing_extensions import override

from fleetx import DistributedStrategy, PlanError


class Doubled(nn.Linear):
    @override
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def net() -> nn.Module:
    parts = {
        "stem": nn.Linear(16, 32),
        "odd": nn.Linear(32, 40),
        "body": nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)),
        "own": Doubled(32, 32),
        "seen": nn.MultiheadAttention(32, 2),
        "exact": nn.Linear(32, 32).double(),
        "head": nn.Linear(32, 16),
    }
    return nn.ModuleDict(OrderedDict(parts))


def told(model: nn.Module, **given: object) -> str:
    strategy = DistributedStrategy()
    strategy.fp8 = True
    strategy.fp8_configs = given  # type: ignore[assignment]
    text = strategy.explain(model)
    return next(line.strip() for line in text.splitlines() if "linear layers" in line)


def test_what_is_left_out_is_told_with_the_reasons() -> None:
    line = told(net())
    assert line.startswith("2 of 8 linear layers multiply in float8.")
    for said in (
        "stem, head: the first and the last layer",
        "odd: 32 inputs and 40 outputs are not both multiples of 16",
        "own: Doubled has a forward of its own",
        "seen.out_proj: nn.MultiheadAttention never calls them",
        "exact: their weights are torch.float64",
    ):
        assert said in line


def test_a_forward_on_the_layer_itself_is_left_alone() -> None:
    model = net()
    layer = model.get_submodule("body.0")
    plain = layer.forward
    layer.forward = lambda x: 2 * plain(x)
    line = told(model)
    assert line.startswith("1 of 8")
    assert "body.0: Linear has a forward of its own" in line


def test_patterns_choose() -> None:
    line = told(net(), layers=["*"])
    assert line.startswith("4 of 8")
    line = told(net(), layers=["body"], exclude=["body.2"])
    assert line.startswith("1 of 8")
    assert "body.2: fp8_configs['exclude'] names them" in line
    assert "stem, odd, own and 3 more: fp8_configs['layers'] does not name them" in line


@pytest.mark.parametrize("option", ["layers", "exclude"])
def test_a_pattern_that_names_nothing_is_refused(option: str) -> None:
    with pytest.raises(PlanError, match=rf"{option}'\] names 'bodi.0', .* 'body.0'"):
        told(net(), **{option: ["bodi.0"]})


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Conv2d(16, 16, 3), "this model has none"),
        (nn.Linear(64, 64), "the model itself: the first and the last layer"),
        (nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))), "1: 8 inputs and 8 outputs"),
    ],
)
def test_a_model_without_such_layers_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(PlanError, match=words) as raised:
        told(model)
    assert str(raised.value).startswith("strategy.fp8 = True cannot be in force")
    assert "strategy.fp8 = False" in str(raised.value)
