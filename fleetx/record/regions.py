"""Regions in which gradients are off or formats differ, as a program was recorded in them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fleetx.record.autocast import DEVICES
from fleetx.torch_internals import enter_autocast, exit_autocast, set_grad_enabled

Function = Callable[..., Any]

Region = tuple[tuple[str, torch.dtype] | None, bool]
"""Of an operator: device and format of its autocast, and whether gradients are on."""

OUTSIDE: Region = None, True


def mark_regions(graph: fx.Graph, *, exported: bool = False) -> None:
    """Insert what enters and leaves torch.no_grad() and torch.autocast() as they were recorded.

    Regions are nested: torch.no_grad() lies inside of torch.autocast(), and is left first.

    Args:
        graph: the operators.
        exported: whether it goes through torch.export, which runs it while it looks on.
    """
    functions = (_really_enter, _really_exit) if exported else (enter_autocast, exit_autocast)
    current = OUTSIDE
    opened: list[tuple[Function, fx.Node]] = []
    for node in list(graph.nodes):
        if not node.op.startswith("call") and node.op != "output":
            continue
        wanted = region(node)
        if wanted == current:
            continue
        with graph.inserting_before(node):
            kept = 0 if wanted[0] != current[0] else min(len(opened), wanted[0] is not None)
            while len(opened) > kept:
                leave, token = opened.pop()
                graph.call_function(leave, (token,))
            _enter(graph, opened, wanted, functions)
        current = wanted


def region(node: fx.Node) -> Region:
    """Where an operator was recorded; sizes are computed outside."""
    if node.op == "output" or node.meta.get("size"):
        return OUTSIDE
    return node.meta.get("autocast"), node.meta.get("grad", True)


def _enter(
    graph: fx.Graph,
    opened: list[tuple[Function, fx.Node]],
    wanted: Region,
    functions: tuple[Function, Function],
) -> None:
    autocast, gradients = wanted
    enter, leave = functions
    if autocast is not None and not opened:
        token = graph.call_function(enter, (*autocast, True, True))
        opened.append((leave, token))
    if not gradients:
        opened.append((set_grad_enabled, graph.call_function(hold_gradients)))


def _really_enter(device: str, dtype: torch.dtype, *options: bool) -> torch.autocast:
    """What torch's own function for graphs does, save while it exports: it would only note it."""
    region = torch.autocast(device, dtype, *options)
    region.__enter__()
    return region


def _really_exit(region: torch.autocast) -> None:
    region.__exit__(None, None, None)


def hold_gradients() -> bool:
    """Switch gradients off; returns whether they were on, for the end of the region."""
    before = torch.is_grad_enabled()
    set_grad_enabled(False)
    return before


class Regions:
    """Leaves what is open when the code of a graph fails: a region would outlive it, everywhere."""

    def __enter__(self) -> None:
        self._gradients, self._depth = torch.is_grad_enabled(), _depth()
        self._formats = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in DEVICES
        ]

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            return
        set_grad_enabled(self._gradients)
        for device, enabled, dtype in self._formats:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        for _ in range(_depth() - self._depth):
            torch.autocast_decrement_nesting()
        if self._depth == 0:
            torch.clear_autocast_cache()


def _depth() -> int:
    """How many autocast regions are open."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())
