"""Servers carry alike, and saves do not care how parameters were spread."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx.ps.worker.parameter_split import ParameterSplit
from tests.habits.test_loops_with_servers import job, trained, values
from tests.libraries import transformers

Shapes = dict[str, tuple[int, ...]]


def network(*widths: int) -> nn.Module:
    layers = (nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths))
    return nn.Sequential(*layers)


def wide_and_deep() -> nn.Module:
    return network(13 + 26 * 8, 64, 64, 1)


def deep_fm() -> nn.Module:
    return nn.ModuleList([network(26 * 16 + 13, 400, 400, 400, 1), nn.Linear(13, 1)])


def dlrm() -> nn.Module:
    return nn.ModuleList([network(13, 512, 256, 64, 16), network(367, 512, 256, 1)])


def bert() -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    )
    made: nn.Module = transformers.BertModel(config)
    return made


def shapes_of(model: nn.Module) -> Shapes:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def loads(shapes: Shapes, servers: int, **options: Any) -> list[int]:
    held = ParameterSplit(**options).over(shapes, servers)
    return [sum(end - begin for _, begin, end in blocks) for blocks in held]


@pytest.mark.parametrize("servers", [2, 4])
@pytest.mark.parametrize("made", [wide_and_deep, deep_fm, dlrm, bert])
def test_servers_carry_alike(made: Any, servers: int) -> None:
    """Blocks dealt out in turn, as before, gave all of a small network to the first server."""
    shapes = shapes_of(made())
    found = loads(shapes, servers)
    mean = sum(p.numel() for p in made().parameters()) / servers
    assert sum(found) == mean * servers
    least = ParameterSplit().min_block_size
    assert max(found) - min(found) <= 2 * least
    assert max(found) <= 1.15 * mean


def test_blocks_in_turn_are_dealt_out_as_ever() -> None:
    old = {"method": "RoundRobin", "min_block_size": 8192}
    assert loads(shapes_of(wide_and_deep()), 2, **old) == [18304, 129]


@pytest.mark.parametrize("method", ["BySize", "RoundRobin", "HashName"])
@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_every_number_is_somewhere_once(method: str, servers: int) -> None:
    shapes = shapes_of(dlrm()) | {"empty": (0, 3), "one": ()}
    held = ParameterSplit(method=method).over(shapes, servers)
    assert held == ParameterSplit(method=method).over({**shapes}, servers)
    places = [
        range(begin, end)
        for blocks in held
        for name, begin, end in blocks
        if name == "1.0.0.weight"
    ]
    assert sorted(at for place in places for at in place) == [*range(367 * 512)]
    assert sorted({name for blocks in held for name, _, _ in blocks}) == sorted(shapes)
    if method == "BySize":  # in the order of the model, whoever has them
        order = {name: at for at, name in enumerate(shapes)}
        for blocks in held:
            kept = [(order[name], begin) for name, begin, _ in blocks]
            assert kept == sorted(kept)


def test_a_save_is_loaded_however_parameters_are_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"k_steps": 0, "split_method": "RoundRobin", "min_block_size": 8192}
    with job(monkeypatch, 2, a_sync=old):
        model, _ = trained(count=3)
        fleet.settle_workers()
        wanted = values(model)
        fleet.save_persistables(str(tmp_path))
    for servers, options in ((3, {}), (1, {}), (2, {"min_block_size": 1})):
        with job(monkeypatch, servers, a_sync={"k_steps": 0, **options}):
            model, _ = trained(count=1)
            assert not torch.equal(model.head.weight, wanted["weight"])
            fleet.load_persistables(str(tmp_path))
            torch.testing.assert_close(values(model), wanted, rtol=0, atol=0)
