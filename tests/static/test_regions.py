"""Regions of torch.no_grad() and torch.autocast() in programs, and what a failed run leaves."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fleetx import static
from fleetx.record.regions import mark_regions

GOOD = {"x": np.ones((2, 4), np.float32), "y": np.ones((2, 4), np.float32)}
BAD = {**GOOD, "y": np.ones((3, 4), np.float32)}


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    """A test that fails here must not change the tests behind it."""
    yield
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    while torch.autocast_increment_nesting() > 1:
        torch.autocast_decrement_nesting()
        torch.autocast_decrement_nesting()
    torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def depth() -> int:
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


@pytest.mark.parametrize("trains", [False, True])
def test_a_failed_run_leaves_no_region_open(trains: bool) -> None:
    x, y = static.data("x", [None, 4]), static.data("y", [None, 4])
    with torch.autocast("cpu", torch.bfloat16):
        hidden = static.nn.fc(x, 3)
        with torch.no_grad():
            added = x + y
        out = added.sum() + hidden.sum()
    if trains:
        static.Optimizer(torch.optim.SGD, lr=0.1).minimize(out)
    exe = static.Executor()
    exe.run(static.default_startup_program())
    with pytest.raises(RuntimeError, match="must match"):
        exe.run(feed=BAD, fetch_list=[out])
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert depth() == 0
    with pytest.raises(RuntimeError, match="must match"), torch.autocast("cpu", torch.float16):
        exe.run(feed=BAD, fetch_list=[out])
    assert (torch.is_autocast_enabled("cpu"), depth()) == (False, 0)
    assert np.isfinite(exe.run(feed=GOOD, fetch_list=[out])[0])
    static.reset()
    assert nn.Linear(4, 1)(torch.ones(1, 4)).dtype == torch.float32


def _calls(graph: Any) -> list[str]:
    names = [getattr(node.target, "__name__", str(node.target)) for node in graph.nodes]
    short = {"_enter_autocast": "+a", "_exit_autocast": "-a", "hold_gradients": "+g"}
    short |= {"_set_grad_enabled": "-g"}
    return [short[name] for name in names if name in short]


def test_regions_are_left_innermost_first() -> None:
    x = static.data("x", [None, 4])
    with torch.no_grad():
        y = x * 2
        with torch.autocast("cpu", torch.bfloat16):
            z = y * 2
    with torch.autocast("cpu", torch.bfloat16):
        z = z * 2
        with torch.no_grad():
            z = z * 2
    program, out = static.default_main_program(), z + 1
    graph = program.graph
    graph.output((program.find(out),))
    mark_regions(graph)
    assert _calls(graph) == ["+g", "-g", "+a", "+g", "-g", "+g", "-g", "-a"]
    opened: list[str] = []
    for call in _calls(graph):
        if call[0] == "+":
            opened.append(call[1])
        else:
            assert opened.pop() == call[1]
    assert not opened
