"""Parts that run one after the other are the model, bit by bit."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fleetx.plan.forward import replace_forward
from fleetx.strategies.pipeline import parts, trace
from tests.strategies.pipeline.models import (
    GPT,
    Block,
    ResNet,
    all_whole,
    check,
    followed,
    nothing_whole,
    results,
    run_all,
)


def text() -> dict[str, Tensor]:
    return {"ids": torch.randint(0, 11, (2, 5)), "mask": torch.randn(2, 1, 5, 5)}


def a_chain(depth: int = 4) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(depth)))


def test_a_sequential() -> None:
    first, second = check(a_chain(), {"input": torch.randn(2, 3)}, ["2"])
    assert (first.inputs, first.receives, first.sends) == (("input",), (), ("_1",))
    assert (second.inputs, second.receives, second.sends) == ((), ("_1",), ())
    assert first.modules == {"0", "1"}
    assert second.modules == {"2", "3"}
    assert not first.attributes | second.attributes


@pytest.mark.parametrize("whole", [all_whole, nothing_whole])
@pytest.mark.parametrize("tied", [False, True])
def test_a_transformer_with_skip_sizes_and_tied_head(whole: trace.Whole, tied: bool) -> None:
    cut = check(GPT(drop=0.2, tied=tied), text(), ["blocks.1", "blocks.2", "norm"], whole)
    first, second, third, last = cut
    assert first.attributes == {"positions"}
    assert second.attributes == third.attributes == set()
    assert last.attributes == {"scale"} | (set() if tied else {"embed.weight"})
    assert ("head" in last.modules) == tied
    # The mask is read from the batch, and so are the sizes that the end needs.
    assert all("mask" in part.inputs for part in cut)
    # The skip goes through the part between; nothing else but the activation travels.
    assert [len(part.receives) for part in cut] == [0, 2, 2, 1]
    assert first.sends[0] == second.sends[0]


def test_a_cut_inside_a_block() -> None:
    check(GPT(), text(), ["blocks.1.out", "blocks.3.qkv"], nothing_whole)


def test_a_container_begins_where_its_first_layer_begins() -> None:
    graph = followed(GPT(), text())
    one, other = parts.cut(graph, ["blocks"]), parts.cut(graph, ["blocks.0"])
    assert [part.modules for part in one] == [part.modules for part in other]


@pytest.mark.parametrize("whole", [all_whole, nothing_whole])
@pytest.mark.parametrize("points", [["layer2"], ["layer1", "layer3", "fc"], ["layer2.1", "layer4"]])
def test_a_resnet(whole: trace.Whole, points: list[str]) -> None:
    def chosen(name: str, module: nn.Module) -> bool:
        return whole(name, module) and not isinstance(module, nn.Sequential)

    check(ResNet(), {"x": torch.randn(4, 3, 8, 8)}, points, chosen)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True) for _ in range(3)
        )

    def forward(self, source: Tensor, padding: Tensor) -> Tensor:
        for layer in self.layers:
            source = layer(source, src_key_padding_mask=padding)
        return source


def test_layers_of_torch_are_whole() -> None:
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    cut = check(
        Layers(), {"source": torch.randn(2, 5, 8), "padding": padding}, ["layers.1", "layers.2"]
    )
    assert [part.inputs for part in cut] == [("source", "padding"), ("padding",), ("padding",)]


class Picks(nn.Module):
    """Takes a dict, returns an ordered dict, and begins with what is needed only at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (
            nn.Linear(3, 3),
            nn.LSTM(3, 4, batch_first=True),
            nn.Linear(4, 2),
        )

    def forward(self, batch: dict[str, Tensor], *, gain: float) -> Any:
        weight, extra = batch["weight"], batch.get("extra")
        x = self.one(batch["x"])
        states, (hidden, _) = self.two(x)
        out = self.three(states)
        return OrderedDict(out=out * weight[..., :1] * gain, hidden=(hidden, extra))


def test_a_dict_as_input_and_a_layer_that_returns_a_tuple() -> None:
    batch = {"x": torch.randn(2, 3, 3), "weight": torch.randn(2, 3, 3)}
    cut = check(Picks(), {"batch": batch, "gain": 2.0}, ["two", "three"])
    assert [part.inputs for part in cut] == [("batch",), (), ("batch",)]
    # Items of the tuple travel, the tuple itself does not.
    assert len(cut[1].sends) == 2
    sent = parts.run(cut[0], model := Picks(), {"batch": batch, "gain": 2.0})
    assert all(isinstance(value, Tensor) for value in parts.run(cut[1], model, {}, sent))
    output = run_all(cut, model, {"batch": batch, "gain": 2.0})
    assert type(output) is OrderedDict


class LateItem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.one, self.two = (
            nn.LSTM(3, 3, batch_first=True),
            nn.Linear(3, 3),
            nn.Linear(3, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        pair = self.pair(x)
        y = self.one(x)
        z = self.two(pair[0])
        return z + y + pair[1][0].sum()


def test_an_item_that_is_taken_late_travels_alone() -> None:
    cut = check(LateItem(), {"x": torch.randn(2, 3, 3)}, ["one", "two"])
    values = parts.run(cut[0], LateItem(), {"x": torch.randn(2, 3, 3)})
    assert all(isinstance(value, Tensor) for value in values)


def test_hooks_and_replaced_forwards_act_even_when_they_come_later() -> None:
    model, inputs, seen = GPT(), text(), []
    cut = parts.cut(followed(model, inputs), ["blocks.2"])
    plain = run_all(cut, model, inputs)["logits"]

    def double(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: 2 * forward(*args)

    replace_forward(model.blocks[1], double)
    model.blocks[3].register_forward_hook(lambda *args: seen.append("forward"))
    model.norm.register_full_backward_hook(lambda *args: seen.append("backward"))
    changed = run_all(cut, model, inputs)
    assert not torch.equal(changed["logits"], plain)
    assert torch.equal(changed["logits"], model(**inputs)["logits"])
    results(model, changed)
    assert seen == ["forward", "forward", "backward"]


def test_a_module_with_hooks_or_an_own_forward_is_called() -> None:
    model, seen = GPT(), []
    model.blocks[0].register_forward_pre_hook(lambda *args: seen.append(0))
    replace_forward(model.blocks[1], lambda forward: lambda *args: forward(*args) + 1)
    nn.utils.parametrizations.weight_norm(model.get_submodule("blocks.2.qkv"))
    cut = check(model, text(), ["blocks.1"], nothing_whole)
    assert cut[0].modules == {"embed", "blocks.0"}
    assert cut[1].modules >= {"blocks.1", "blocks.2.qkv"}
    assert seen


def test_parameters_are_fetched_when_a_part_runs() -> None:
    model, inputs = GPT(), text()
    cut = parts.cut(followed(model, inputs, nothing_whole), ["blocks.2"])
    model.embed.weight = nn.Parameter(torch.randn(11, 8))
    model.positions = nn.Parameter(torch.randn(1, 16, 8))
    model.blocks[3].out = nn.Linear(8, 8)
    want = model(**inputs)["logits"]
    assert torch.equal(run_all(cut, model, inputs)["logits"], want)


def test_other_sizes_than_those_seen_first() -> None:
    model = GPT()
    cut = check(model, text(), ["blocks.1"])
    inputs = {"ids": torch.randint(0, 11, (3, 7)), "mask": torch.randn(3, 1, 7, 7)}
    assert torch.equal(run_all(cut, model, inputs)["logits"], model(**inputs)["logits"])
    cut[0].check(inputs)
    longer = {"ids": torch.zeros(1, 17, dtype=torch.int64), "mask": torch.zeros(1, 1, 17, 17)}
    with pytest.raises(ValueError, match="Python code decided by a size"):
        cut[0].check(longer)


def test_the_other_mode_is_refused_where_the_code_asks_for_it() -> None:
    model, inputs = GPT(drop=0.5), text()
    inside = parts.cut(followed(model, inputs, nothing_whole), ["blocks.2"])
    outside = parts.cut(followed(model, inputs), ["blocks.2"])
    model.eval()
    assert torch.equal(run_all(outside, model, inputs)["logits"], model(**inputs)["logits"])
    with pytest.raises(ValueError, match=r"'blocks.0' was training .* is evaluating now"):
        run_all(inside, model, inputs)
    again = parts.cut(followed(model, inputs, nothing_whole), ["blocks.2"])
    assert torch.equal(run_all(again, model, inputs)["logits"], model(**inputs)["logits"])


class LastMode(nn.Module):
    """Asks for the mode when nothing is left to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        y = self.two(self.one(x))
        return {"y": y} if self.training else y


def test_a_mode_that_decides_what_is_returned() -> None:
    model, inputs = LastMode(), {"x": torch.randn(2, 3)}
    cut = check(model, inputs, ["two"])
    assert [part.modes for part in cut] == [(), (("", True),)]
    with pytest.raises(ValueError, match="the model was training"):
        run_all(cut, model.eval(), inputs)


def test_a_missing_input_is_named() -> None:
    cut = parts.cut(followed(GPT(), text()), ["blocks.2"])
    with pytest.raises(ValueError, match=r"needs \['mask'\], and the batch holds \['ids'\]"):
        parts.run(cut[0], GPT(), {"ids": torch.zeros(1, 1, dtype=torch.int64)})


def test_backward_part_by_part_gives_the_same_gradients() -> None:
    model, inputs = GPT(depth=3).double(), text()
    inputs["mask"] = inputs["mask"].double()
    want = results(model, model(**inputs)["logits"])
    cut = parts.cut(followed(model, inputs), ["blocks.1", "blocks.2"])
    received: list[tuple[Tensor, ...]] = [()]
    sent: list[Any] = []
    for part in cut:
        sent.append(parts.run(part, model, inputs, received[-1]))
        if part.sends:
            received.append(tuple(value.detach().requires_grad_() for value in sent[-1]))
    sent[-1]["logits"].pow(2).sum().backward()
    for values, leaves in zip(sent[-2::-1], received[:0:-1], strict=True):
        torch.autograd.backward(values, [leaf.grad for leaf in leaves])
    got = [sent[-1]["logits"], *(p.grad for p in model.parameters()), *model.buffers()]
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.idle = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.block = Block(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(self.two(self.one(x)))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (["one"], "calls 'one' more than once"),
        (["idle"], "the forward calls no such submodule; it calls 'one', 'two'"),
        (["nonsense"], "calls no such submodule"),
        (["two.weight"], "lies inside 'two', which is followed as a whole"),
    ],
)
def test_points_that_cannot_begin_a_part(points: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parts.cut(followed(Shared(), {"x": torch.randn(2, 3)}), points)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (["2", "1"], "runs '1' before '2'"),
        (["2", "2"], "nothing would run in the part before '2'"),
        (["0"], "nothing would run in the part before '0'"),
    ],
)
def test_points_out_of_order(points: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parts.cut(followed(a_chain()), points)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.act, self.two = nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3)
        self.three = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        view = y.view(-1)
        z = self.two(self.act(y))
        z[:, 0] = 1.0
        z = self.three(z)
        return z + view[0]


def test_no_cut_between_a_value_and_a_change_of_it_in_place() -> None:
    inputs = {"x": torch.randn(2, 3)}
    graph = followed(InPlace(), inputs)
    with pytest.raises(ValueError, match="'act' cannot begin a part, because 'act' after it chang"):
        parts.cut(graph, ["act"])
    check(InPlace(), inputs, ["two", "three"])


class Aliased(nn.Module):
    """Changes a value of the first layer through a layer that only looks at it differently."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.flat, self.two = nn.Linear(3, 3), nn.Flatten(1), nn.Linear(9, 9)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        other = y.mT
        flat = self.flat(y)
        flat *= 2
        return self.two(flat) + other[:, 0, :1]


def test_a_change_through_a_view_is_seen() -> None:
    with pytest.raises(ValueError, match="'flat' cannot begin a part, because 'mul_'"):
        parts.cut(followed(Aliased(), {"x": torch.randn(2, 3, 3)}), ["flat"])
    check(Aliased(), {"x": torch.randn(2, 3, 3)}, ["two"])


class ChangesInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return self.two(self.one(x)) + x


def test_an_input_that_one_part_changes_and_another_reads() -> None:
    with pytest.raises(ValueError, match="'two' cannot begin a part, because 'mul_'"):
        parts.cut(followed(ChangesInput(), {"x": torch.randn(2, 3)}), ["two"])


class AsksLayout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        stride = y.stride(0) // 2 + y.size(0)
        return self.two(y) + stride


def test_a_layout_that_is_asked_for_is_that_of_the_model() -> None:
    check(AsksLayout(), {"x": torch.randn(2, 3)}, ["two"])


def test_a_size_does_not_travel() -> None:
    class Sizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x)
            count = y.size(0) * y.shape[-1] // 2
            count += 1
            return self.three(self.two(y)) / count

    cut = check(Sizes(), {"x": torch.randn(2, 3)}, ["two", "three"])
    assert cut[0].sends == ("one",)
    assert cut[1].sends == ("two",)
    assert all("size" in part.graph.python_code("self").src for part in cut[2:])
