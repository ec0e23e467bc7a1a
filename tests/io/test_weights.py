"""Folders of weights that transformers writes and reads, straight into shares and out of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fleetx as fleet
from fleetx.testing import world
from tests.graph.test_first_values import MODELS  # brings transformers, which is loaded by then
from tests.layouts.test_layouts import Layout, strategy
from tests.layouts.test_meta_device import ONE, Transformer
from tests.layouts.transformer import batch

# isort: split
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import MergeModulelist, Transpose, WeightConverter

ONE_FILE = "model.safetensors"


def laid_out(layout: Layout, kind: str) -> fleet.DistributedStrategy:
    chosen: Any = strategy(layout, ())
    if layout["tp"] > 1 and kind != "own":
        nothing: Any = dict.fromkeys(("column", "row", "vocabulary"), ())
        chosen.tensor_parallel_configs = {"plan": "transformer", **nothing}
    return chosen


def made(kind: str, *, meta: bool) -> nn.Module:
    with torch.device("meta" if meta else "cpu"):
        return Transformer(tied=True) if kind == "own" else MODELS[kind]()


def moved(
    layout: Layout, kind: str, source: Path, target: Path, order: str
) -> tuple[dict[str, Tensor], str]:
    """Load a folder in one of several ways, save it again; the whole weights in between."""
    fleet.init(is_collective=True, strategy=laid_out(layout, kind))
    torch.manual_seed(fleet.worker_index())
    model = made(kind, meta=order != "numbers, then loaded")
    if order == "loaded, then laid out":
        fleet.load_weights(model, source)
    model = fleet.distributed_model(model, sample=batch(0)[0] if kind == "own" else None)
    if order != "loaded, then laid out":
        fleet.load_weights(model, source)
    fleet.save_weights(model, target, max_shard_size=40_000)
    return fleet.full_state_dict(model), type(model).__name__


ORDERS = ("loaded, then laid out", "laid out, then loaded", "numbers, then loaded")


def compare(layout: Layout, kind: str, order: str, folder: Path) -> None:
    torch.manual_seed(11)
    plain = made(kind, meta=False)
    if kind == "own":
        fleet.save_weights(plain, folder / "source")
        assert [path.name for path in (folder / "source").iterdir()] == ["model.safetensors"]
    else:
        plain.save_pretrained(folder / "source", max_shard_size="40KB")  # type: ignore[operator]
        assert (folder / "source" / "model.safetensors.index.json").exists()
    workers = max(layout.values())
    apart = world(workers, timeout=200).run(
        moved, layout, kind, folder / "source", folder / "target", order
    )
    expected = plain.state_dict()
    assert apart[0][0].keys() == expected.keys()
    assert all(torch.equal(apart[0][0][name], expected[name]) for name in expected)
    again = (
        made(kind, meta=False) if kind == "own" else type(plain).from_pretrained(folder / "target")  # type: ignore[attr-defined]
    )
    if kind == "own":
        fleet.load_weights(again, folder / "target")
    assert all(torch.equal(again.state_dict()[name], expected[name]) for name in expected)
    index = json.loads((folder / "target" / "model.safetensors.index.json").read_text())
    files = {path.name for path in (folder / "target").glob("model-*")}
    assert files == set(index["weight_map"].values())
    assert len(files) > 1
    assert {p.name for p in (folder / "target").iterdir() if p.is_dir()} == set(), "nothing is left"


@pytest.mark.parametrize(
    ("axis", "kind", "order"),
    [
        ("sharding", "mixtral", ORDERS[0]),
        ("tp", "llama", ORDERS[1]),
        ("pp", "own", ORDERS[0]),
    ],
)
def test_two_workers(axis: str, kind: str, order: str, tmp_path: Path) -> None:
    compare(ONE | {axis: 2}, kind, order, tmp_path)


@pytest.mark.rare
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("axis", "kind"),
    [
        *(("dp", "gpt2"), ("sharding", "llama"), ("sharding", "bert")),
        *(("sharding", "gpt2"), ("sharding", "mixtral"), ("none", "mixtral"), ("pp", "own")),
        *(("tp", "own"), ("tp", "gpt2"), ("none", "gpt2"), ("none", "bert"), ("sharding", "vit")),
    ],
)
def test_every_order(axis: str, kind: str, order: str, tmp_path: Path) -> None:
    compare(ONE if axis == "none" else ONE | {axis: 2}, kind, order, tmp_path)


@pytest.mark.parametrize("kind", ["vit", "mixtral"])
def test_folders_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """It stores a ViT under older names, and each expert of Mixtral by itself."""
    torch.manual_seed(3)
    model: Any = made(kind, meta=False)
    model.save_pretrained(tmp_path / "theirs")
    again = made(kind, meta=False)
    fleet.load_weights(again, tmp_path / "theirs")
    expected = model.state_dict()
    assert all(torch.equal(again.state_dict()[name], expected[name]) for name in expected)
    fleet.save_weights(again, tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / who / ONE_FILE) for who in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    assert theirs.keys() != expected.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


def test_tensors_of_which_transformers_moves_the_numbers(tmp_path: Path) -> None:
    model: Any = made("mixtral", meta=False)
    model.save_pretrained(tmp_path)
    turned = WeightConverter(
        [".experts.*.w2.weight"], ".experts.down_proj", [MergeModulelist(0), Transpose(1, 2)]
    )
    known = get_checkpoint_conversion_mapping("mixtral")
    register_checkpoint_conversion_mapping("mixtral", [*known[:2], turned], overwrite=True)
    try:
        with pytest.raises(
            ValueError, match=r"makes 'model.*down_proj' of .* of 4 in all, .*Transpose moves"
        ):
            fleet.load_weights(model, tmp_path)
        fleet.load_weights(model, tmp_path, strict=False)
    finally:
        register_checkpoint_conversion_mapping("mixtral", known, overwrite=True)


def test_files_are_those_of_safetensors(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)).to(torch.bfloat16)
    fleet.save_weights(model, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


class Scaled(nn.Module):
    def __init__(self, features: int = 4) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(features, 4), nn.Parameter(torch.full((4,), 2.0))


@world(1)
def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    fleet.init(is_collective=True)
    fleet.save_weights(Scaled(), tmp_path)
    with pytest.raises(ValueError, match=r"lacks 'weight', 'bias'; it has, and the .*'inner.bias'"):
        fleet.load_weights(nn.Linear(4, 4), tmp_path)
    with pytest.raises(
        ValueError, match=r"'inner\.weight' has the shape \[4, 4\] in .* and \[4, 3"
    ):
        fleet.load_weights(fleet.distributed_model(Scaled(3)), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor"):
        fleet.load_weights(Scaled(), tmp_path.parent)
    with pytest.raises(ValueError, match="max_shard_size = '5 apples' is no size"):
        fleet.save_weights(Scaled(), tmp_path, max_shard_size="5 apples")
    with torch.device("meta"):
        model = fleet.distributed_model(Scaled())
    fleet.load_weights(model, tmp_path)  # what no function fills
    assert float(model.scale.sum()) == 8.0
