"""Schedules tick with the runs of a training program."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from fleetx import static

FORMULAS: dict[str, tuple[Any, list[float]]] = {
    "piecewise": (static.lr.piecewise_decay([2, 3], [1.0, 0.5, 0.1]), [1.0, 1.0, 0.5, 0.1, 0.1]),
    "exponential": (
        static.lr.exponential_decay(1.0, 2, 0.25),
        [1.0, 0.5, 0.25, 0.125, 0.0625],
    ),
    "staircase": (static.lr.exponential_decay(1.0, 2, 0.5, True), [1.0, 1.0, 0.5, 0.5, 0.25]),
    "natural": (
        static.lr.natural_exp_decay(1.0, 1, 1.0),
        [math.exp(-t) for t in range(5)],
    ),
    "inverse": (static.lr.inverse_time_decay(1.0, 1, 1.0), [1 / (1 + t) for t in range(5)]),
    "polynomial": (static.lr.polynomial_decay(1.0, 4, 0.0), [1.0, 0.75, 0.5, 0.25, 0.0]),
    "cycle": (
        static.lr.polynomial_decay(1.0, 2, 0.0, cycle=True),
        [1.0, 0.5, 0.0, 0.25, 0.0],
    ),
    "cosine": (
        static.lr.cosine_decay(1.0, 2, 2),
        [1.0, 1.0, 0.5, 0.5, 0.0],
    ),
    "noam": (
        static.lr.noam_decay(4, 2),
        [0.5 * min((t + 1) ** -0.5, (t + 1) * 2**-1.5) for t in range(5)],
    ),
    "warm-up": (
        static.lr.linear_lr_warmup(static.lr.exponential_decay(1.0, 1, 0.5), 2, 0.0, 0.2),
        [0.0, 0.1, 0.25, 0.125, 0.0625],
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name: str) -> None:
    schedule, expected = FORMULAS[name]
    assert [schedule(t) for t in range(5)] == pytest.approx(expected)


def test_every_run_is_a_tick() -> None:
    schedule = static.lr.piecewise_decay([1, 2], [1.0, 0.5, 0.25])
    layer = nn.Linear(1, 1, bias=False)
    loss = layer(static.data("x", [None, 1])).mean()
    static.Optimizer(torch.optim.SGD, lr=schedule).minimize(loss)
    start = layer.weight.item()
    exe = static.Executor()
    feed = {"x": torch.ones(1, 1)}
    rates = [float(exe.run(feed=feed, fetch_list=[loss, schedule])[1]) for _ in range(3)]
    assert rates == [1.0, 0.5, 0.25]
    assert layer.weight.item() == pytest.approx(start - 1.75)


def test_values_and_boundaries_must_fit() -> None:
    with pytest.raises(ValueError, match="one value more"):
        static.lr.piecewise_decay([1, 2], [1.0, 0.5])
