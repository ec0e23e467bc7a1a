"""A run goes on from the checkpoint of any layout, on any number of workers."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fleetx.testing import world
from tests.io.layouts import LAYOUTS, MERGED, Tied, moved, straight

CELLS: dict[str, list[str]] = {
    "one": ["dp2", "pp2"],
    "dp2": ["dp2", "z1x2", "pp2"],
    "z1x2": ["z1x2", "tp2"],
    "z3x2": ["pp2", "z1x2"],
    "pp2": ["pp2", "z1x2", "tp2"],
    "tp2": ["pp2"],
}
"""Layout -> those from whose checkpoints it goes on in the gate; all from all in ``test-all``."""

Ended = dict[str, tuple[Tensor, Any]]
At = Callable[[str], tuple[Path, Tensor, list[Any]]]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> At:
    """Runs that were not interrupted, each with a checkpoint on the way; made when asked for."""
    folder, made = tmp_path_factory.mktemp("layouts"), {}

    def find(layout: str) -> tuple[Path, Tensor, list[Any]]:
        if layout not in made:
            found = world(LAYOUTS[layout][0]).run(straight, layout, folder, MERGED)
            made[layout] = (folder, found[0][0], together([seen for _, seen in found]))
        return made[layout]

    return find


def together(seen: list[Any]) -> list[Any]:
    """The samples of each batch, of all shares."""
    shares = dict(seen)  # ranks of one share have the same
    return [sorted(chain(*batches)) for batches in zip(*shares.values(), strict=True)]


def first_weights() -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.cat([value.flatten() for value in Tied().state_dict().values()])


def check(at: At, target: str, sources: list[str]) -> None:
    for source in sources:
        at(source)
    folder = at(sources[0])[0]
    found = world(LAYOUTS[target][0], timeout=900).run(moved, target, sources, folder, MERGED)
    start = first_weights()
    for source in sources:
        _, expected, samples = at(source)
        assert together([ended[source][1] for ended in found]) == samples, source
        for ended in found:
            weights = ended[source][0]
            if source == target:
                torch.testing.assert_close(weights, expected, rtol=0, atol=0)
            distance = (weights - expected).norm() / (expected - start).norm()
            assert distance < 1e-6, f"from {source}: {distance}"


@pytest.mark.parametrize("target", CELLS)
def test_it_goes_on_under_another_layout(target: str, at: At) -> None:
    check(at, target, CELLS[target])


@pytest.mark.rare
@pytest.mark.parametrize("target", LAYOUTS)
def test_every_layout_goes_on_from_every_other(target: str, at: At) -> None:
    check(at, target, list(LAYOUTS))
