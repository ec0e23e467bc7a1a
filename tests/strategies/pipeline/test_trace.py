"""A followed forward: which calls it has, which arguments, and which modules are opened."""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrizations

from fleetx.strategies.pipeline import parts, trace
from tests.strategies.pipeline.models import (
    GPT,
    Block,
    ResNet,
    check,
    followed,
    nothing_whole,
    run_all,
)


def calls(graph: fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "call_module"]


def inputs(graph: fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "placeholder"]


TEXT = {"ids": torch.randint(0, 11, (2, 5)), "mask": torch.randn(2, 1, 5, 5)}


def test_whole_modules_are_one_call_each() -> None:
    graph = followed(GPT(depth=2), TEXT)
    assert calls(graph) == ["embed", "blocks.0", "blocks.1", "norm"]
    opened = followed(GPT(depth=2), TEXT, lambda name, module: name == "blocks.1")
    inside = ["blocks.0.norm", "blocks.0.qkv", "blocks.0.out"]
    assert calls(opened) == ["embed", *inside, "blocks.1", "norm"]


def test_the_predicate_sees_names_and_modules() -> None:
    model, asked = GPT(depth=2), {}

    def whole(name: str, module: nn.Module) -> bool:
        asked[name] = module
        return True

    followed(model, TEXT, whole)
    assert asked == {"blocks.0": model.blocks[0], "blocks.1": model.blocks[1]}


class Arguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(
        self, x: Tensor, y: Tensor, z: Tensor | None = None, *rest: Any, w: Tensor, v: int = 2
    ) -> Tensor:
        total = self.one(x) + y * v
        if z is not None:
            total = total + z
        return self.two(total) * w


def test_arguments_with_a_default_keep_it() -> None:
    model = Arguments()
    x, y, w = (torch.randn(2, 3) for _ in range(3))
    given = {"x": x, "y": y, "w": w}
    graph = followed(model, given)
    assert inputs(graph) == ["x", "y", "w"]
    cut = parts.cut(graph, ["two"])
    assert torch.equal(run_all(cut, model, given), model(x, y, w=w))


def test_arguments_with_a_default_may_be_given() -> None:
    model = Arguments()
    x, y, z, w = (torch.randn(2, 3) for _ in range(4))
    given = {"x": x, "y": y, "z": z, "w": w, "v": 3}
    graph = followed(model, given)
    assert inputs(graph) == ["x", "y", "z", "w"]
    cut = parts.cut(graph, ["two"])
    assert torch.equal(run_all(cut, model, given), model(x, y, z, w=w, v=3))


class Pair(NamedTuple):
    left: Any
    right: Tensor


class Which(Enum):
    LEFT = "left"
    RIGHT = "right"


class Listed(list[Any]):
    pass


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


class Returns(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.one, self.two, self.kind = nn.Linear(3, 3), nn.Linear(3, 3), kind

    def forward(self, x: Tensor) -> Any:
        y = self.one(x)
        z = self.two(y)
        kinds: dict[str, Any] = {
            "pair": lambda: Pair(y, z),
            "output": lambda: Output(z),
            "nest": lambda: [(y, {"z": z, "n": 1}), None],
            "pair in a dict": lambda: {"pair": Pair(y, z)},
            "pair in a pair": lambda: Pair(Pair(y, z), z),
            "enum": lambda: {"z": z, "which": Which.LEFT, Which.RIGHT: [Which.LEFT, y]},
            "values and indices": lambda: torch.max(z, dim=1),
            "list of a class": lambda: Listed([y, z]),
        }
        return kinds[self.kind]()


KINDS = ["pair", "output", "nest", "pair in a dict", "pair in a pair", "enum"]


@pytest.mark.parametrize("kind", [*KINDS, "values and indices", "list of a class"])
def test_the_output_is_of_the_same_kind(kind: str) -> None:
    model, x = Returns(kind), torch.randn(2, 3)
    got = run_all(parts.cut(followed(model, {"x": x}), ["two"]), model, {"x": x})
    assert_alike(got, model(x))


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, given: dict[Which, Pair]) -> Tensor:
        left, right = given[Which.LEFT]
        return self.inner(left) + right


class Hands(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), Added()

    def forward(self, x: Tensor) -> Tensor:
        return self.two({Which.LEFT: Pair(self.one(x), x)})


def test_submodules_get_arguments_of_the_same_kind() -> None:
    model, x = Hands(), torch.randn(2, 3)
    assert_alike(run_all(parts.cut(followed(model, {"x": x}), ["two"]), model, {"x": x}), model(x))


class Queues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        return deque([self.one(x)])


def test_tensors_in_what_cannot_be_looked_into_are_refused() -> None:
    with pytest.raises(trace.TraceError, match="the argument deque holds a"):
        followed(Queues(), {"x": torch.randn(2, 3)})


def assert_alike(got: Any, want: Any) -> None:
    """The same classes and numbers, all the way down."""
    assert type(got) is type(want)
    if isinstance(want, Tensor):
        assert torch.equal(got, want)
    elif isinstance(want, tuple | list):
        for ours, theirs in zip(got, want, strict=True):
            assert_alike(ours, theirs)
    elif isinstance(want, dict):
        assert [*got] == [*want]
        assert_alike([*got.values()], [*want.values()])
    elif isinstance(want, Output):
        assert_alike(vars(got), vars(want))
    else:
        assert got == want


def test_a_graph_module_is_a_model_like_others() -> None:
    check(fx.symbolic_trace(ResNet()), {"x": torch.randn(2, 3, 8, 8)}, ["layer2.0.conv2"])


def test_a_parametrized_weight_used_by_hand() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = parametrizations.weight_norm(nn.Linear(3, 3))
            self.two = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x)) @ self.one.weight

    cut = check(Tied(), {"x": torch.randn(2, 3)}, ["two"])
    assert cut[1].modules == {"two"}
    assert all(name.startswith("one.parametrizations.weight") for name in cut[1].attributes)


def test_a_module_with_two_names_has_the_first() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU())
    model.add_module("again", model[2])
    for sample in (None, {"input": torch.randn(2, 3)}):
        assert calls(followed(model, sample)) == ["0", "1", "2", "2"]


def test_nothing_is_left_behind() -> None:
    model = GPT(depth=1)
    patched = [torch.zeros, isinstance, nn.Module.__setattr__, nn.Module.__call__]
    fields = {name: dict(module.__dict__) for name, module in model.named_modules()}
    followed(model, TEXT, nothing_whole)
    assert [torch.zeros, isinstance, nn.Module.__setattr__, nn.Module.__call__] == patched
    assert "training" not in nn.Module.__dict__
    assert {name: dict(module.__dict__) for name, module in model.named_modules()} == fields


class Wide(nn.Module):
    """Most weights sit in a body of two halves, one of which cannot be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Sequential(nn.Linear(2, 2))
        self.body = nn.ModuleDict({"left": Half(False), "right": Half(True)})
        self.torchs = nn.TransformerEncoderLayer(8, 2, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.torchs(self.body["right"](self.body["left"](x)))


class Half(nn.Module):
    def __init__(self, decides: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
        self.decides = decides

    def forward(self, x: Tensor) -> Tensor:
        if self.decides and x.sum() > 0:
            return x
        return self.layers(x)


def test_heavy_modules_are_opened_where_they_can_be_followed() -> None:
    model = Wide()
    way = trace.way_of(model, {"x": torch.randn(2, 3, 8)})
    left = [f"body.left.layers.{number}" for number in range(6)]
    assert calls(trace.open_up(model, 4, way).graph) == [*left, "body.right", "torchs"]
    halves = ["body.left", "body.right", "torchs"]
    assert calls(trace.open_up(model, 1, way).graph) == halves


def test_blocks_stay_whole_when_there_are_enough() -> None:
    model = GPT(depth=8)
    opened = trace.open_up(model, 2, trace.way_of(model, TEXT))
    whole, graph = opened.whole, opened.graph
    names = ["embed", *(f"blocks.{number}" for number in range(8)), "norm"]
    assert calls(graph) == calls(followed(model, TEXT, whole)) == names
    model = GPT(depth=2)
    assert not trace.open_up(model, 2, trace.way_of(model, TEXT)).whole("blocks.0", Block(4))


def test_a_model_is_followed_once_to_be_opened() -> None:
    ways = list[trace.Forward]()

    def way(whole: trace.Whole) -> trace.Forward:
        ways.append(trace.record(model, whole, TEXT))
        return ways[-1]

    model = GPT(depth=8)
    trace.open_up(model, 8, way)
    assert len(ways) == 1


def test_a_model_whose_own_code_cannot_be_followed() -> None:
    model = Half(True)
    with pytest.raises(trace.TraceError, match="needs the numbers"):
        trace.open_up(model, 2, trace.way_of(model, {"x": torch.randn(2, 8)}))


class Stacks(nn.Module):
    """Torch's own stacks, which loop over layers by code that decides by values."""

    def __init__(self) -> None:
        super().__init__()
        wide: dict[str, Any] = {
            "d_model": 8,
            "nhead": 2,
            "dim_feedforward": 16,
            "batch_first": True,
        }
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**wide), 3, norm=nn.LayerNorm(8)
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**wide), 3)

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        padding: Tensor | None = None,
    ) -> Tensor:
        memory = self.encoder(x, mask=mask, src_key_padding_mask=padding)
        return self.decoder(y, memory, tgt_mask=mask)


HIDDEN = torch.ones(5, 5).triu(1).bool()
MASKS: dict[str, dict[str, Tensor]] = {
    "no mask": {},
    "padding": {"padding": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("training", [True, False])
def test_the_layers_of_torchs_own_stacks_can_be_cut(masks: str, training: bool) -> None:
    model = Stacks().train(training)
    given = {"x": torch.randn(2, 5, 8), "y": torch.randn(2, 5, 8), **MASKS[masks]}
    graph = followed(model, given, lambda name, _: name not in {"encoder", "decoder"})
    cut = parts.cut(graph, ["encoder.layers.1", "encoder.layers.2", "decoder.layers.1"])
    torch.manual_seed(1)
    want = model(**given)
    torch.manual_seed(1)
    torch.testing.assert_close(run_all(cut, model, given), want)
    assert [len(part.modules) for part in cut] == [1, 1, 3, 2]


def test_torchs_own_stacks_are_opened() -> None:
    model = Stacks()
    sample = {"x": torch.randn(2, 5, 8), "y": torch.randn(2, 5, 8)}
    names = calls(trace.open_up(model, 4, trace.way_of(model, sample)).graph)
    layers = [f"{side}.layers.{number}" for side in ("encoder", "decoder") for number in range(3)]
    assert names == [*layers[:3], "encoder.norm", *layers[3:]]


def test_chains_are_known_by_their_structure() -> None:
    inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model = nn.Sequential(nn.Linear(3, 3), inner, Half(False), inner)
    assert calls(followed(model)) == ["0", "1", "2", "1"]
    opened = followed(model, None, lambda name, _: name != "1")
    assert calls(opened) == ["0", "1.0", "1.1", "2", "1.0", "1.1"]
    with pytest.raises(trace.TraceError, match=r"forward of '2', a Half, .*sample=inputs"):
        followed(model, None, lambda name, _: name != "2")
    with pytest.raises(trace.TraceError, match=r"forward of a GPT is code.*sample=inputs"):
        followed(GPT())


class Named(nn.Sequential):
    """A chain of a class of its own, or something else in the clothes of one."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)


class Turned(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        for layer in reversed(self):
            input = layer(input)
        return input


def test_a_chain_with_a_forward_of_its_own_is_none() -> None:
    assert calls(followed(Named(nn.Linear(3, 3), nn.ReLU()))) == ["0", "1"]
    turned = Turned(nn.Linear(3, 4), nn.Linear(4, 3))
    with pytest.raises(trace.TraceError, match=r"a Turned is code.*sample=inputs"):
        followed(turned)
    assert calls(followed(turned, {"input": torch.randn(2, 4)})) == ["1", "0"]
    assert calls(followed(nn.Sequential(turned), None, nothing_around)) == ["0"]


def nothing_around(name: str, module: nn.Module) -> bool:
    return name == "0"


def test_in_a_chain_no_stage_begins_where_a_layer_changes_what_it_is_given() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.ReLU(inplace=True), nn.Linear(3, 3))
    check(model, {"input": torch.randn(2, 3)}, ["3"])
    for sample in (None, {"input": torch.randn(2, 3)}):
        graph = followed(model, sample)
        for point in ("1", "2"):
            with pytest.raises(ValueError, match=f"'{point}' cannot begin a part"):
                parts.cut(graph, [point])
        assert len(parts.cut(graph, ["3"])) == 2
