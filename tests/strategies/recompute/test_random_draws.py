"""A replay draws the random numbers of its first run, and nobody else's numbers change."""

import pytest
import torch

from fleetx.strategies.recompute.random_draws import Draws

DEVICE = torch.device("cpu")


def test_work_that_draws_is_repeated_exactly() -> None:
    draws = Draws(DEVICE)
    before = draws.before()
    first = torch.rand(4)
    states = draws.drawn(before)
    assert states is not None
    torch.rand(3)
    outside = torch.get_rng_state()
    with draws.again(states):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(torch.get_rng_state(), outside)


def test_generators_come_back_after_an_error() -> None:
    draws = Draws(DEVICE)
    before = draws.before()
    torch.rand(1)
    states = draws.drawn(before)
    assert states is not None
    outside = torch.get_rng_state()
    with pytest.raises(KeyError), draws.again(states):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), outside)


def test_work_that_draws_nothing_needs_nothing() -> None:
    draws = Draws(DEVICE)
    assert draws.drawn(draws.before()) is None
    assert draws.drawn(None) is None
    assert not draws.on_device
