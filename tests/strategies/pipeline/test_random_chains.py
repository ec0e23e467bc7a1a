"""Random chains with skips, cut at random places, are the same model."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.strategies.pipeline.models import all_whole, check, nothing_whole


class Cell(nn.Module):
    def __init__(self, pair: bool) -> None:
        super().__init__()
        self.inner, self.pair = nn.Linear(3, 3), pair

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        y = torch.tanh(self.inner(x))
        return (y, y * 2) if self.pair else y


class Chain(nn.Module):
    """Each layer adds earlier values, the input and their sizes to what it is given."""

    def __init__(self, skips: list[list[int]], pairs: list[bool]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(Cell, pairs))
        self.gain = nn.Parameter(torch.ones(3))
        self.skips, self.pairs = skips, pairs

    def forward(self, x: Tensor, batch: dict[str, Tensor]) -> Tensor:
        values, rows = [x], x.size(0)
        for layer, skips, pair in zip(self.layers, self.skips, self.pairs, strict=True):
            given = values[-1]
            for skip in skips:
                given = given + values[skip % len(values)] * self.gain / (rows + skip)
            out = layer(given)
            values.append(out[1] + batch["bias"] if pair else out)
        return values[-1] + values[len(values) // 2].shape[0]


@st.composite
def chains(draw: st.DrawFn) -> tuple[Chain, list[str], bool]:
    depth = draw(st.integers(2, 7))
    skips = draw(st.lists(st.lists(st.integers(0, 9), max_size=2), min_size=depth, max_size=depth))
    pairs = draw(st.lists(st.booleans(), min_size=depth, max_size=depth))
    cuts = draw(st.lists(st.booleans(), min_size=depth - 1, max_size=depth - 1))
    points = [f"layers.{number}" for number, is_cut in enumerate(cuts, 1) if is_cut]
    return Chain(skips, pairs), points, draw(st.booleans())


@given(drawn=chains(), rows=st.integers(1, 3))
@settings(max_examples=12, deadline=None)
def test_any_cut_is_the_model(drawn: tuple[Chain, list[str], bool], rows: int) -> None:
    model, points, opened = drawn
    inputs = {"x": torch.randn(rows, 3), "batch": {"bias": torch.randn(rows, 3)}}
    cut = check(model, inputs, points, nothing_whole if opened else all_whole)
    for part in cut:
        assert not set(part.inputs) & set(part.receives)
        assert len(set(part.receives)) == len(part.receives)
    depth = len(model.layers)
    layers = [name for part in cut for name in part.modules]
    assert sorted(layers) == sorted({*layers})
    assert len(layers) == depth
