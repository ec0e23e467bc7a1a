"""Random numbers go on where they were, whoever draws them, also after a trip through a file."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from fleetx.io.files import load_tensors, save_tensors
from fleetx.io.random_state import random_state, set_random_state
from fleetx.io.training_state import leaves, tree

CPU = torch.device("cpu")


def draw() -> list[float]:
    # A normal number is drawn in pairs, of which one is kept: it is part of the state.
    torchs = torch.rand(1).item(), torch.randn(1).item()
    return [*torchs, random.random(), random.gauss(), np.random.rand(), np.random.randn()]


def test_all_generators_go_on(tmp_path: Path) -> None:
    before = random_state(CPU)
    try:
        draw()
        save_tensors(tmp_path / "state", dict(leaves("run", random_state(CPU))))
        expected = [draw() for _ in range(3)]
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        assert draw() != expected[0]
        set_random_state(tree(load_tensors(tmp_path / "state"))["run"], CPU)
        assert [draw() for _ in range(3)] == expected
    finally:
        set_random_state(before, CPU)


class Device:
    """Stands for ``torch.cuda`` with one generator, which is a number."""

    def __init__(self) -> None:
        self.states = {"cuda:1": torch.tensor([7], dtype=torch.uint8)}

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        return self.states[str(device)]

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        self.states[str(device)] = state


def test_the_generator_of_this_workers_device_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    card, module = torch.device("cuda:1"), Device()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    saved = random_state(card)
    module.states["cuda:1"] = torch.tensor([9], dtype=torch.uint8)
    set_random_state(saved, card)
    assert module.states["cuda:1"].item() == 7
    set_random_state(random_state(CPU), card)  # saved without a card: it keeps its own
    assert module.states["cuda:1"].item() == 7
