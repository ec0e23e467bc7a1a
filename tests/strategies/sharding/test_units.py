"""Units: a tree of modules is cut into pieces whose parameters travel together."""

from collections import Counter
from collections.abc import Collection

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fleetx.plan.forward import replace_forward
from fleetx.strategies.sharding.fully_sharded import units_of
from fleetx.strategies.sharding.units import Unit, by_anchors, by_size, is_compound, without_shared

KIB = 1024
EVERYTHING = float("inf")


class Line(nn.Module):
    """A module with ``kib`` KiB of parameters of its own and a forward."""

    def __init__(self, kib: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(kib * KIB // 4))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Block(nn.Module):
    """Two lines of one KiB each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Line(), Line()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Model(nn.Module):
    """Four blocks of two KiB between a table of four and a head of one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Line(4)
        self.place = nn.Parameter(torch.zeros(8))
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.drop = nn.Dropout()
        self.head = Line()

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(self.drop(x))


def names(units: Collection[Unit]) -> list[list[str]]:
    return [unit.names for unit in units]


def parameters(unit: Unit) -> set[nn.Parameter]:
    return {parameter for module in unit.modules for parameter in module.parameters()}


PARTS = ("first", "second")
LAYERS = [f"layers.{i}" for i in range(4)]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (EVERYTHING, [["table", *LAYERS, "head"]]),
        # What is larger than the limit but has no children cannot be opened.
        (3 * KIB, [["table"], LAYERS[:2], LAYERS[2:], ["head"]]),
        (2 * KIB, [["table"], *([name] for name in LAYERS), ["head"]]),
        (5 * KIB, [["table", LAYERS[0]], LAYERS[1:], ["head"]]),
        (
            1 * KIB,
            [["table"], *([f"{name}.{part}"] for name in LAYERS for part in PARTS), ["head"]],
        ),
    ],
)
def test_units_are_closed_by_their_size(limit: float, expected: list[list[str]]) -> None:
    model = Model()
    units = by_size(model, limit)
    assert names(units) == expected
    for unit in units:
        assert unit.modules == [model.get_submodule(name) for name in unit.names]
        assert unit.size == sum(p.numel() * 4 for p in parameters(unit))


def test_sizes_are_bytes_of_the_type() -> None:
    model = nn.Sequential(Line(), Line().half(), Line().double())
    assert [unit.size for unit in by_size(model, 1)] == [KIB, KIB // 2, 2 * KIB]


@pytest.mark.parametrize(
    ("anchors", "expected"),
    [
        ((), [["table", *LAYERS, "head"]]),
        (("layers.1",), [["table", *LAYERS[:2]], [*LAYERS[2:], "head"]]),
        (("layers.3", "table"), [["table"], LAYERS, ["head"]]),
        (("head",), [["table", *LAYERS, "head"]]),
        # An anchor opens what is around it.
        (
            ("layers.1.first",),
            [["table", "layers.0", "layers.1.first"], ["layers.1.second", *LAYERS[2:], "head"]],
        ),
    ],
)
def test_anchors_end_units(anchors: tuple[str, ...], expected: list[list[str]]) -> None:
    assert names(by_anchors(Model(), anchors)) == expected


def test_anchors_that_are_no_pieces_themselves_end_units_too() -> None:
    model = Model()
    whole = [["table", *LAYERS], ["head"]]
    assert names(by_anchors(model, ["layers"])) == whole, "a list ends with its last module"
    assert names(by_anchors(model, ["drop"])) == whole, "and so does what is not dealt out"
    nested = names(by_anchors(model, ["layers.1", "layers.1.first"]))
    assert nested == [
        ["table", "layers.0", "layers.1.first"],
        ["layers.1.second"],
        [*LAYERS[2:], "head"],
    ]
    kept = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8), Line())
    assert names(by_anchors(kept, ["0.linear1"])) == [["0"], ["1"]], "this layer stays whole"


def test_what_belongs_to_the_model_itself_is_in_no_unit() -> None:
    model = Model()
    for limit in (KIB, EVERYTHING):
        assert all(model.place not in parameters(unit) for unit in by_size(model, limit))


def test_own_parameters_of_an_opened_module_stay_with_the_model() -> None:
    block = Block()
    block.scale = nn.Parameter(torch.zeros(1))
    model = nn.Sequential(block, Line())
    assert names(by_size(model, KIB)) == [["0.first"], ["0.second"], ["1"]]
    assert all(block.scale not in parameters(unit) for unit in by_size(model, KIB))
    assert names(by_size(model, EVERYTHING)) == [["0", "1"]]


def test_containers_are_opened_because_nobody_calls_them() -> None:
    pair = nn.ModuleDict({"a": Line(), "b": Line()})
    bare = nn.Module()
    bare.inner, bare.own = Line(), nn.Parameter(torch.zeros(1))
    model = nn.ModuleList([nn.ModuleList([Line(), Line()]), pair, bare])
    expected = [["0.0", "0.1", "1.a", "1.b", "2.inner"]]
    assert names(by_size(model, EVERYTHING)) == expected
    assert names(by_anchors(model, [])) == expected
    assert names(by_size(nn.ModuleList([nn.ParameterList([torch.ones(3)])]), KIB)) == []


def test_sequences_are_opened_because_loops_call_only_their_layers() -> None:
    class Named(nn.Sequential):
        """Has a forward of its own, which is called."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.Sequential(*self)(x)

    class Rows(nn.Sequential):
        """Has not."""

    model = nn.ModuleList([nn.Sequential(Line(), nn.ReLU(), Rows(Line())), Named(Line(), Line())])
    replaced = nn.Sequential(Line(), Line())
    replace_forward(replaced, lambda forward: forward)
    model.append(replaced)
    assert names(by_size(model, EVERYTHING)) == [["0.0", "0.2.0", "1", "2"]]


def test_layers_of_torch_that_read_their_childrens_weights_stay_whole() -> None:
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)
    found = by_size(nn.ModuleDict({"stack": stack, "attention": nn.MultiheadAttention(4, 2)}), 1)
    assert names(found) == [["stack.layers.0"], ["stack.layers.1"], ["attention"]]


def test_compound_layers() -> None:
    class Own(nn.TransformerEncoderLayer):
        """Classes that users derive are as compound as their base."""

    class Rows(nn.Sequential):
        """And those derived from a container as open as theirs."""

    layer = Own(4, 2, 8)
    compound = (
        layer,
        layer.self_attn,
        nn.Transformer(4, 2, 1, 1, 8, batch_first=True),
        nn.LSTM(2, 2),
        nn.Linear(1, 1),
    )
    assert all(map(is_compound, compound))
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 1)
    assert not any(map(is_compound, (Model(), Block(), Rows(Line()), nn.ModuleList(), decoder)))


def test_modules_whose_forward_was_replaced_stay_whole_or_fall_apart() -> None:
    """Inside of them everything is a unit by itself: a replay calls some of it without the rest."""
    model = Model()
    replace_forward(model.layers[1], lambda forward: forward)
    assert names(by_size(model, EVERYTHING)) == [["table", *LAYERS, "head"]]
    opened = ["layers.1.first"], ["layers.1.second"]
    anchors = by_anchors(model, ["layers.1.first"])
    assert names(anchors) == [["table", "layers.0"], *map(list, opened), [*LAYERS[2:], "head"]]
    wide = nn.Sequential(Line(), nn.Sequential(Line(), nn.Sequential(Line(), Line())), Line())
    replace_forward(wide[1], lambda forward: forward)
    assert names(by_size(wide, 2.5 * KIB)) == [["0"], ["1.0"], ["1.1.0"], ["1.1.1"], ["2"]]


def test_the_forward_of_the_model_itself_may_be_replaced() -> None:
    model = Model()
    replace_forward(model, lambda forward: forward)
    assert names(by_size(model, EVERYTHING)) == [["table", *LAYERS, "head"]]


def test_modules_elsewhere_end_a_unit_and_are_in_none() -> None:
    model = Model()
    away = {model.layers[1], model.layers[2], model.head}
    expected = [["table", "layers.0"], ["layers.3"]]
    assert names(by_size(model, EVERYTHING, away)) == expected
    assert names(by_anchors(model, [], away)) == expected
    assert by_size(model, KIB, set(model.children())) == []


def test_a_module_with_two_names_is_dealt_out_once() -> None:
    line = Line()
    model = nn.Sequential(line, Line(), line)
    assert names(by_size(model, EVERYTHING)) == [["0", "1"]]


def test_modules_that_use_a_parameter_of_another_unit_belong_to_the_model() -> None:
    model = Model()
    model.head.weight = model.table.weight
    third = model.get_submodule("layers.2")
    third.first.weight = third.second.weight  # type: ignore[union-attr]
    assert names(without_shared(by_size(model, EVERYTHING))) == [["table", *LAYERS, "head"]]
    assert names(without_shared(by_size(model, 2 * KIB))) == [
        ["layers.0"],
        ["layers.1"],
        # One KiB, because its parameter is tied inside: not full yet.
        ["layers.2", "layers.3"],
    ]
    parts = names(without_shared(by_size(model, 1)))
    assert parts == [[f"layers.{i}.{part}"] for i in (0, 1, 3) for part in PARTS]
    assert without_shared([]) == []


def test_a_table_with_two_names_belongs_to_the_model_where_a_format_lies_between() -> None:
    """As in prompt tuning of peft: a frozen model, a trained prompt, and the model's table."""
    model = nn.ModuleDict({"body": Block(), "prompt": Line()})
    model["body"].requires_grad_(False)
    model["words"] = model.get_submodule("body.first")
    assert names(units_of(model, ((), ()), (), 1)) == [["prompt"]]


def test_what_is_left_of_a_unit_keeps_its_size() -> None:
    model = nn.Sequential(Line(2), Line(3), Line(4), Line(5))
    model[3].weight = model[0].weight
    cut = by_anchors(model, ["1"])
    assert [(unit.names, unit.size) for unit in cut] == [
        (["0", "1"], 5 * KIB),
        (["2", "3"], 6 * KIB),
    ]
    kept = [(unit.names, unit.size) for unit in without_shared(cut)]
    assert kept == [(["1"], 3 * KIB), (["2"], 4 * KIB)]


class Wrapper(nn.Module):
    """Has nothing but another module."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inside(x)
        return found


def test_wrappers_are_opened_because_they_reach_through_each_other() -> None:
    model = Wrapper(Wrapper(Model()))
    inside = [f"inside.inside.{name}" for name in ("table", *LAYERS, "head")]
    assert names(by_size(model, EVERYTHING)) == [inside]
    assert names(by_size(Wrapper(Wrapper(Line(2))), EVERYTHING)) == [["inside.inside"]]
    attention = nn.MultiheadAttention(4, 2)
    assert names(by_size(Wrapper(attention), EVERYTHING)) == [["inside"]], "never calls its layers"


def test_frozen_parameters_travel_too() -> None:
    model = Model().requires_grad_(False)
    assert names(by_size(model, EVERYTHING)) == [["table", *LAYERS, "head"]]


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> nn.Module:
    """Random trees of lines, sequences and lists; some weights are tied."""

    def grow(level: int) -> nn.Module:
        kind = draw(st.sampled_from(("line", "line", "sequence", "list") if level else ("line",)))
        if kind == "line":
            line = Line(draw(st.integers(1, 5)))
            if made and draw(st.integers(0, 5)) == 0:
                line.weight = draw(st.sampled_from(made)).weight
            made.append(line)
            return line
        children = [grow(level - 1) for _ in range(draw(st.integers(0, 4)))]
        return nn.Sequential(*children) if kind == "sequence" else nn.ModuleList(children)

    made: list[Line] = []
    return nn.Sequential(*(grow(depth) for _ in range(draw(st.integers(1, 4)))))


@settings(max_examples=60, deadline=None)
@given(model=trees(), limit=st.integers(1, 30 * KIB))
def test_what_is_true_of_every_cut_by_size(model: nn.Module, limit: int) -> None:
    units = by_size(model, limit)
    everything = set(model.parameters())
    assert set().union(*map(parameters, units)) == everything, "none is forgotten"
    alone = without_shared(units)
    homes = [parameters(unit) for unit in alone]
    assert sum(map(len, homes)) == len(set().union(*homes)), "a parameter has one home"
    uses = Counter(parameter for unit in units for parameter in parameters(unit))
    kept = {module for unit in alone for module in unit.modules}
    for module in (module for unit in units for module in unit.modules):
        own = all(uses[parameter] == 1 for parameter in module.parameters())
        assert (module in kept) == own, "or its module stays with the model"
    dealt = [name for unit in units for name in unit.names]
    order = [name for name, _ in model.named_modules()]
    assert dealt == sorted(dealt, key=order.index), "units are contiguous"
    for number, unit in enumerate(units):
        sizes = [sum(p.numel() * 4 for p in m.parameters()) for m in unit.modules]
        assert unit.size == sum(sizes)
        assert sum(sizes[:-1]) < limit, "a unit is closed as soon as it is full"
        assert unit.size >= limit or number == len(units) - 1, "and not before"


@settings(max_examples=60, deadline=None)
@given(model=trees(), data=st.data())
def test_what_is_true_of_every_cut_by_names(model: nn.Module, data: st.DataObject) -> None:
    known = [name for name, _ in model.named_modules() if name]
    anchors = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
    units = by_anchors(model, anchors)
    dealt = [name for unit in units for name in unit.names]
    order = [name for name, _ in model.named_modules()]
    assert dealt == sorted(dealt, key=order.index)
    assert set().union(*map(parameters, units)) == set(model.parameters())
    inside = [[name for name in dealt if f"{name}.".startswith(f"{a}.")] for a in anchors]
    ends = {found[-1] for found in inside if found}
    assert ends <= {unit.names[-1] for unit in units}, "units end with the anchors"
    assert len(units) <= len(anchors) + 1
