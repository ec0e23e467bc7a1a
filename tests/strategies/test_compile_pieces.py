"""Which modules of a model are compiled by themselves."""

import pytest
import torch
from torch import nn

from fleetx.strategies.compile.pieces import pieces
from tests.libraries import transformers


def gpt2(words: int) -> nn.Module:
    config = transformers.GPT2Config(n_layer=4, n_embd=64, n_head=2, vocab_size=words)
    with torch.device("meta"):
        model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


def named(model: nn.Module, *, pads: bool) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[module] for module in pieces(model, (), (), 4, pads=pads).modules]


BLOCKS = [f"transformer.h.{number}" for number in range(4)]


@pytest.mark.parametrize(
    ("words", "pads", "beside"),
    [(50_257, True, ["lm_head"]), (50_257, False, []), (50_304, True, []), (257, True, [])],
)
def test_a_large_head_of_an_odd_size_is_code_where_code_pads_it(
    words: int, pads: bool, beside: list[str]
) -> None:
    assert named(gpt2(words), pads=pads) == [*BLOCKS, *beside]


def test_an_odd_layer_inside_of_a_larger_piece_stays_a_part_of_it() -> None:
    config = transformers.BertConfig(
        num_hidden_layers=4, hidden_size=64, num_attention_heads=2, intermediate_size=64
    )
    with torch.device("meta"):
        model = transformers.BertForMaskedLM(config)
    assert "cls" in named(model, pads=True)
    assert named(model, pads=True) == named(model, pads=False)
