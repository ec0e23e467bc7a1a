"""Layer kinds: what plans find, why layers stay whole, and which modules run them."""

import pytest
import torch
from torch import Tensor, nn

from fleetx.graph.layer_kinds import (
    ATTENTION,
    MLP,
    around_positions,
    cut_dim,
    planned,
    regions,
    why_not,
    with_descendants,
)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln, self.attention = nn.LayerNorm(4), Attention()
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(6, 4), nn.Embedding(3, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(4, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def found(model: nn.Module, plan: str) -> dict[str, str]:
    return dict(planned(dict(model.named_modules()), plan))


def test_plans_find_pairs_and_vocabularies() -> None:
    mlp = {f"blocks.{i}.mlp.{j}": kind for i in (0, 1) for j, kind in ((0, "column"), (2, "row"))}
    attention = {
        f"blocks.{i}.attention.{name}": "row" if name == "out_proj" else "column"
        for i in (0, 1)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
    }
    words = {"wte": "vocabulary", "head": "vocabulary"}
    assert found(Model(), "mlp") == mlp
    assert found(Model(), "transformer") == mlp | attention | words
    assert found(Model(), "") == {}


class Adapter(nn.Module):
    """As peft wraps a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.base_layer, self.lora_A = layer, nn.Linear(4, 2)


def test_layers_inside_of_what_has_their_name_are_found() -> None:
    model = nn.Module()
    model.to_q, model.to_out = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4), nn.Dropout()])
    assert found(model, "transformer") == {"to_q": "column", "to_out.0": "row"}
    model.to_q = Adapter(model.to_q)
    model.to_out[0] = Adapter(model.to_out[0])
    cut = {"to_q.base_layer": "column", "to_out.0.base_layer": "row"}
    assert found(model, "transformer") == cut
    model.to_out = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    assert found(model, "transformer") == {}, "what follows it would be given a part"


def test_layers_of_one_kind_alone_are_no_pair() -> None:
    model = nn.ModuleDict({"proj": nn.Linear(4, 4)})
    model["block"] = nn.ModuleDict({"fc1": nn.Linear(4, 4), "fc2": nn.Linear(4, 4)})
    assert found(model, "transformer") == {"block.fc1": "column", "block.fc2": "row"}


@pytest.mark.parametrize(("table", "plan"), [(MLP, "mlp"), (ATTENTION, "transformer")])
def test_every_known_name_makes_a_pair_with_every_other(table: dict[str, str], plan: str) -> None:
    for column in table["column"].split():
        for row in table["row"].split():
            model = nn.ModuleDict({column: nn.Linear(2, 2), row: nn.Linear(2, 2)})
            assert found(model, plan) == {column: "column", row: "row"}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("LaLLL", {"0": "column", "2": "row", "3": "column", "4": "row"}),
        ("LnL", {}),
        ("LnLaL", {"2": "column", "4": "row"}),
        ("aL", {}),
    ],
)
def test_pairs_of_a_sequence_have_activations_alone_between(
    layers: str, expected: dict[str, str]
) -> None:
    def layer(letter: str) -> nn.Module:
        return {"L": nn.Linear(4, 4), "a": nn.ReLU(), "n": nn.LayerNorm(4)}[letter]

    assert found(nn.Sequential(*map(layer, layers)), "mlp") == expected


def reason(module: nn.Module, path: str, kind: str, degree: int = 2) -> str | None:
    return why_not(dict(module.named_modules()), path, kind, degree)


def test_what_can_be_cut_has_no_reason_against_it() -> None:
    model = Model()
    for path, kind in found(model, "transformer").items():
        assert reason(model, path, kind) is None
    assert reason(model, "blocks.0.ln", "sequence") is None
    assert reason(nn.Sequential(nn.Dropout()), "0", "sequence") is None


def test_reasons_say_what_to_do_instead() -> None:
    model = Model()
    cases = {
        ("wte", "column"): "a Embedding, and 'column' cuts nn.Linear with a weight of its own",
        ("blocks.0", "vocabulary"): "cuts nn.Linear or nn.Embedding",
        ("wpe", "vocabulary"): "whose 3 entries cannot be dealt out evenly to 2 ranks; make them 4",
        ("head", "sequence"): "'sequence' takes single layers that treat each position by itself",
        ("blocks.0", "sequence"): "name those alone",
    }
    for (path, kind), text in cases.items():
        assert text in str(reason(model, path, kind)), path
    assert "whose 8 output features" in str(reason(model, "blocks.0.mlp.0", "column", 3))
    assert "make them 9" in str(reason(model, "blocks.0.mlp.2", "row", 3))
    torch_layer = nn.TransformerEncoderLayer(4, 2, 8)
    assert "write the attention with" in str(reason(torch_layer, "self_attn.out_proj", "row"))
    assert reason(torch_layer, "linear1", "column") is None
    table = nn.Sequential(nn.Embedding(4, 4, sparse=True))
    assert "needs the whole table; set neither" in str(reason(table, "0", "vocabulary"))


def test_a_weight_that_is_computed_cannot_be_cut() -> None:
    model = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    assert "with a weight of its own" in str(reason(model, "0", "column"))


@pytest.mark.parametrize(
    ("kind", "weight", "bias"),
    [("column", 0, 0), ("row", 1, None), ("vocabulary", 0, 0), ("sequence", None, None)],
)
def test_dimensions_of_cuts(kind: str, weight: int | None, bias: int | None) -> None:
    assert (cut_dim(kind, "weight"), cut_dim(kind, "bias")) == (weight, bias)
    assert cut_dim(kind, "scale") is None
    assert cut_dim(None, "weight") is None


def test_regions_are_the_modules_that_call_what_is_cut() -> None:
    model = Model()
    cuts = {model.get_submodule(path): kind for path, kind in found(model, "transformer").items()}
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    assert regions(model, cuts) == {
        *(block.attention for block in blocks),
        *(block.mlp for block in blocks),
        *(model.wte, model.head),
    }
    assert around_positions(model, cuts) == set()
    assert around_positions(model, {blocks[0].ln: "sequence"}) == {blocks[0]}
    # The list between them has no forward.
    assert around_positions(model, dict.fromkeys((b.ln for b in blocks), "sequence")) == {model}
    assert regions(model, {blocks[0].ln: "sequence"}) == set()
    inner = with_descendants([blocks[0].mlp])
    assert inner == {blocks[0].mlp, *blocks[0].mlp}
