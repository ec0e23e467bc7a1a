"""The same training twice: as a program and as a plain loop."""

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx import static

Feeds = Sequence[dict[str, np.ndarray]]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def images(steps: int, size: int = 32, batch: int = 4) -> Feeds:
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.standard_normal((batch + step, 3, size, size), dtype=np.float32),
            "y": rng.integers(0, 10, batch + step),
        }
        for step in range(steps)
    ]


def words(steps: int, length: int = 7, batch: int = 4, classes: int = 4) -> Feeds:
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.integers(0, 50, (batch + step, length)),
            "y": rng.integers(0, classes, batch + step),
        }
        for step in range(steps)
    ]


def rows(steps: int = 2) -> Feeds:
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.standard_normal((6 + step, 4), dtype=np.float32),
            "y": rng.integers(0, 2, 6 + step),
        }
        for step in range(steps)
    ]


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def declared(feed: dict[str, np.ndarray]) -> tuple[static.Variable, static.Variable]:
    """Inputs for such feeds, with a free batch."""
    made = [
        static.data(name, [None, *value.shape[1:]], str(value.dtype))
        for name, value in feed.items()
    ]
    return made[0], made[1]


def by_program(model: nn.Module, loss: Loss, feeds: Feeds) -> list[float]:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        cost = loss(model, *declared(feeds[0]))
        optimizer = static.Optimizer(torch.optim.SGD, lr=0.05, momentum=0.9)
        static.minimize(optimizer, cost)
    exe = static.Executor(static.CPUPlace())
    exe.run(startup)
    torch.manual_seed(5)
    return [float(exe.run(main, feed, [cost])[0]) for feed in feeds]


def by_hand(model: nn.Module, loss: Loss, feeds: Feeds) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(5)
    losses = []
    for feed in feeds:
        cost = loss(model, *(torch.from_numpy(value) for value in feed.values()))
        cost.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(cost.detach()))
    return losses


def assert_same_training(model: nn.Module, loss: Loss, feeds: Feeds) -> None:
    twin = copy.deepcopy(model)
    assert by_program(model, loss, feeds) == by_hand(twin, loss, feeds)
    for (name, ours), theirs in zip(
        model.state_dict().items(), twin.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs), name
