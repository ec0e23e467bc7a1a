"""LARS and LAMB alike: every path computes the formula, and life as a torch optimizer."""

import copy
import subprocess
import weakref
from functools import partial
from pathlib import Path
from unittest.mock import create_autospec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from fleetx.strategies.layerwise import layers
from fleetx.testing import world
from tests.programs import python
from tests.strategies.layerwise.layers import (
    DEVICES,
    EXCLUDED,
    STEPS,
    assert_same,
    gradients,
    graph_and_eager,
    parameters,
    train,
)
from tests.strategies.layerwise.rules import RULES, advance, job

KINDS = [(name, kind) for name, rule in RULES.items() for kind in rule.options]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_path_follows_the_formula(
    device: str, fused: bool | None, name: str, kind: str
) -> None:
    rule = RULES[name]
    found = train(rule.make, device=device, lr=rule.lr, fused=fused, **rule.options[kind])
    assert_same(found, rule.reference(rule.lr, **rule.options[kind]), rtol=2e-6)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("name", RULES)
def test_a_step_waits_for_nothing_and_can_be_captured(fused: bool | None, name: str) -> None:
    rule = RULES[name]
    eager, replayed = graph_and_eager(partial(rule.make, fused=fused), rule.lr)
    assert_same(replayed, eager, rtol=1e-7)


@pytest.mark.parametrize("name", RULES)
@given(shapes=st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=3, max_size=6))
@settings(max_examples=25, deadline=None)
def test_any_shape_follows_the_formula(name: str, shapes: list[list[int]]) -> None:
    rule = RULES[name]
    lr, options = rule.rate_of_shapes, rule.options_of_shapes
    expected = rule.reference(lr, shapes=shapes, **options)
    for fused, small in ((False, 0), (None, 0), (None, 500)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers, "SMALL", small)
            found = train(rule.make, shapes=shapes, lr=lr, fused=fused, **options)
        assert_same(found, expected, rtol=rule.rtol_of_shapes)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("name", RULES)
def test_the_rate_may_be_a_tensor(device: str, fused: bool | None, name: str) -> None:
    rule = RULES[name]
    lr = torch.tensor(rule.lr, device=device)
    found = train(rule.make, device=device, lr=lr, fused=fused)
    assert_same(found, rule.reference(rule.lr), rtol=2e-6)


@pytest.mark.parametrize("name", RULES)
def test_layers_are_sorted_once_though_gradients_move(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = RULES[name].make
    sorting = create_autospec(make._sort, side_effect=make._sort)
    monkeypatch.setattr(make, "_sort", sorting)
    params = parameters()
    rule, held = make(params, lr=0.1), list[Tensor]()
    for _ in range(3):
        for param in params:
            param.grad = torch.randn_like(param)
            held.append(param.grad)  # so that the next ones lie elsewhere
        rule.step()
    assert sorting.call_count == 1
    wide = next(param for param in params if param.dim() == 2)
    wide.grad = torch.randn(wide.shape[::-1]).t()
    rule.step()
    assert sorting.call_count == 2


WHOLE = """
import sys, torch
from tests.strategies.layerwise.rules import advance, job
params, optimizer = job(sys.argv[2], getattr(torch, sys.argv[3]))
advance(params, optimizer, range(3))
torch.save({"params": params, "optimizer": optimizer.state_dict()}, sys.argv[1] + "/half.pt")
advance(params, optimizer, range(3, 6))
torch.save(params, sys.argv[1] + "/whole.pt")
"""

RESUME = """
import sys, torch
from tests.strategies.layerwise.rules import advance, job
saved = torch.load(sys.argv[1] + "/half.pt")
params, optimizer = job(sys.argv[2], getattr(torch, sys.argv[3]))
for param, value in zip(params, saved["params"]):
    param.data.copy_(value)
optimizer.load_state_dict(saved["optimizer"])
advance(params, optimizer, range(3, 6))
torch.save(params, sys.argv[1] + "/resumed.pt")
"""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", RULES)
def test_a_new_process_goes_on_bit_for_bit(tmp_path: Path, name: str, dtype: str) -> None:
    # Both are programs: sums are added up in as many threads as a process began with.
    for program in (WHOLE, RESUME):
        subprocess.run([python(), "-c", program, str(tmp_path), name, dtype], check=True)
    whole, resumed = (torch.load(tmp_path / f"{half}.pt") for half in ("whole", "resumed"))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(whole, resumed, strict=True))


@pytest.mark.parametrize("name", RULES)
def test_a_cleared_state_starts_afresh(name: str) -> None:
    params, optimizer = job(name)
    start = copy.deepcopy(params)
    advance(params, optimizer, range(1))
    first = [p.detach().clone() for p in params]
    for param, value in zip(params, start, strict=True):
        param.data.copy_(value)
    optimizer.state.clear()
    optimizer.step()
    assert all(torch.equal(p, value) for p, value in zip(params, first, strict=True))


@pytest.mark.parametrize("name", RULES)
def test_a_step_does_not_keep_gradients_alive(name: str) -> None:
    params, optimizer = job(name)
    advance(params, optimizer, range(2))
    grad = weakref.ref(params[0].grad)
    optimizer.zero_grad()
    assert grad() is None


@pytest.mark.parametrize("name", RULES)
def test_exclusion_is_not_taken_from_a_checkpoint(name: str) -> None:
    _, optimizer = job(name)
    optimizer.load_state_dict(RULES[name].make(parameters(), lr=1.0).state_dict())
    assert optimizer.param_groups[0]["lr"] == 1.0
    assert optimizer.param_groups[0]["excluded"] == EXCLUDED


def spread(name: str) -> list[Tensor]:
    """``train`` with parameters cut over two ranks, put together again."""
    mesh = init_device_mesh("cpu", (2,))
    whole = parameters(shapes=((6, 4), (5,), (3, 3)))
    places: list[list[Placement]] = [[Shard(0)], [Shard(0)], [Replicate()]]
    params = [
        nn.Parameter(distribute_tensor(p.detach(), mesh, place))
        for p, place in zip(whole, places, strict=True)
    ]
    rule = RULES[name]
    optimizer = rule.make([{"params": params, "excluded": EXCLUDED}], lr=rule.rate_when_spread)
    for step in range(STEPS):
        for param, grad, place in zip(params, gradients(whole, step), places, strict=True):
            param.grad = None if grad is None else distribute_tensor(grad, mesh, place)
        optimizer.step()
    return [param.full_tensor().detach().double() for param in params]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", RULES)
def test_norms_of_spread_parameters_are_those_of_the_whole(name: str) -> None:
    rule = RULES[name]
    expected = rule.reference(rule.rate_when_spread, shapes=((6, 4), (5,), (3, 3)))
    for found in world(2).run(spread, name):
        assert_same(found, expected, rtol=2e-6)
