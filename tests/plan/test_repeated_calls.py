"""Blocks that are alike are followed once: models of others, with and without that."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fleetx.graph.likeness import likeness
from fleetx.plan import repeated_calls
from fleetx.plan.repeated_calls import RepeatedCalls
from fleetx.plan.run import Run
from fleetx.plan.subject import Subject
from fleetx.plan.trace import Trace
from tests.libraries import timm, torchvision, transformers

LAYERS = 5


def llama() -> tuple[nn.Module, Any]:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
    )
    ids = torch.zeros(2, 8, dtype=torch.long)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


def gpt() -> tuple[nn.Module, Any]:
    config = transformers.GPT2Config(n_layer=LAYERS, n_embd=32, n_head=4, vocab_size=64)
    config.use_cache = False
    return transformers.GPT2LMHeadModel(config), {"input_ids": torch.zeros(2, 8, dtype=torch.long)}


def bert() -> tuple[nn.Module, Any]:
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4
    )
    return transformers.BertModel(config), {"input_ids": torch.zeros(2, 8, dtype=torch.long)}


def vit() -> tuple[nn.Module, Any]:
    net = timm.create_model("vit_tiny_patch16_224", depth=LAYERS, img_size=32, num_classes=4)
    return net, torch.zeros(2, 3, 32, 32)


def resnet() -> tuple[nn.Module, Any]:
    return torchvision.models.resnet34(num_classes=4), torch.zeros(2, 3, 32, 32)


def followed(
    make: Callable[[], tuple[nn.Module, Any]], monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> tuple[Trace, list[str]]:
    """What a forward does, and the blocks that were not followed."""
    known, paths = RepeatedCalls._repeated, list[str]()

    def repeated(self: RepeatedCalls, found: Any, path: str, leaves: Any) -> Any:
        paths.append(path)
        return known(self, found, path, leaves)

    with monkeypatch.context() as patch, torch.device("meta"):
        patch.setattr(RepeatedCalls, "_repeated", repeated)
        if again:
            patch.setattr("fleetx.plan.fakes.blocks_of", lambda model: {})
        model, sample = make()
        return Subject(model=model, sample=sample).trace(Run()), paths


def told(trace: Trace) -> Any:
    """All of it, with memory named in the order in which it comes up."""
    seen: dict[int, int] = {}

    def name(number: int) -> Any:
        return trace.own.get(number) or seen.setdefault(number, len(seen))

    def place(one: Any) -> Any:
        return one.path, one.part, one.at, [*map(name, one.reads)], [*map(name, one.makes)]

    operations = [(*place(one), one.count, one.signature) for one in trace.operations]
    calls = [place(one) for one in trace.calls]
    saved = [(name(one.value), one.path, one.part, one.at) for one in trace.saved]
    return operations, calls, saved, [*trace.values.values()]


RARE = [pytest.param(make, marks=pytest.mark.rare) for make in (gpt, bert)]


@pytest.mark.parametrize("make", [llama, vit, resnet, *RARE])
def test_a_model_with_equal_blocks_is_traced_as_if_each_were_followed(
    make: Callable[[], tuple[nn.Module, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, skipped = followed(make, monkeypatch, again=False)
    whole, none = followed(make, monkeypatch, again=True)
    # Some have a number that another attribute is as well, such as a dimension, and are followed.
    assert skipped
    assert not none
    assert told(quick) == told(whole)


class Block(nn.Module):
    def __init__(self, number: int, width: int) -> None:
        super().__init__()
        self.number, self.width, self.layer = number, width, nn.Linear(9, 9)
        self.seen: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layer(x)] * self.width).sum(0, keepdim=True) + x


class Stack(nn.Module):
    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def skipped(*blocks: Block, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found = followed(lambda: (Stack(*blocks), torch.ones(2, 9)), monkeypatch, again=False)
    return found[1]


def test_blocks_that_differ_in_an_attribute_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [Block(at, width) for at, width in enumerate((2, 2, 7, 7, 2))]
    # The batch wants no gradient, what blocks return does.
    assert skipped(*blocks, monkeypatch=monkeypatch) == ["blocks.3", "blocks.4"]


def test_blocks_with_hooks_or_with_objects_of_their_own_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = [Block(at, 7) for at in range(5)]
    blocks[3].layer.register_forward_hook(lambda *_: None)
    blocks[4].seen = object()
    assert skipped(*blocks, monkeypatch=monkeypatch) == ["blocks.2"]
    assert likeness(blocks[3], "blocks.3") is None


def test_what_returns_its_input_is_known_by_it() -> None:
    class Same(Block):
        def forward(self, x: Tensor) -> Tensor:
            return x

    net = Stack(*(Same(at, 1) for at in range(3)))
    trace = Subject(model=net, sample=torch.ones(2, 9)).trace(Run())
    assert {call.makes for call in trace.calls} == {trace.calls[0].reads}
    assert repeated_calls.blocks_of(net).keys() == {"blocks.0", "blocks.1", "blocks.2"}
