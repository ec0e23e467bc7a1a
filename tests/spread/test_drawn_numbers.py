"""Random numbers for tensors that workers share are those that one process draws."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx.testing import world
from tests.spread.test_parts_written import laid_out, weights
from tests.spread.test_whole_numbers import CUT, FIRST, SHARDED, mlp

Draw = Callable[[Any], object]


def initialised(p: Any) -> None:
    nn.init.xavier_uniform_(p)


def normal(p: Any) -> None:
    p.data.normal_(0.0, 0.5)


def truncated(p: Any) -> None:
    nn.init.trunc_normal_(p, std=0.2)


def noisy(p: Any) -> None:
    p.add_(torch.randn_like(p) * 0.1)


def even(p: Any) -> None:
    p.add_(torch.rand_like(p.data), alpha=0.1)


def whole_numbers(p: Any) -> None:
    p.copy_(torch.randint_like(p.data, 0, 9))


def dropped(p: Any) -> None:
    p.mul_(torch.empty_like(p.data).bernoulli_(0.5))


def with_a_generator(p: Any) -> None:
    p.data.uniform_(-1, 1, generator=torch.Generator().manual_seed(4))


def by_chance(p: Any) -> None:
    p.copy_(torch.bernoulli(p.data.sigmoid()))


DRAWS = [initialised, normal, truncated, noisy, even, whole_numbers, dropped]
DRAWS += [with_a_generator, by_chance]


def differences(flags: dict[str, Any]) -> list[str]:
    found = []
    for draw in DRAWS:
        ours, usual = laid_out(flags), mlp()
        drawn = []
        for parameters in (weights(ours), weights(usual)):
            torch.manual_seed(5)
            with torch.no_grad():
                for parameter in parameters:
                    draw(parameter)
            drawn.append([whole(parameter) for parameter in parameters])
            drawn[-1].append(torch.rand(3))  # what a script draws next
        if not all(map(torch.equal, *drawn)):
            found.append(draw.__name__)
    return found


def whole(parameter: Any) -> Tensor:
    values: Tensor = getattr(parameter, "full_tensor", lambda: parameter)()
    return values.detach()


@pytest.mark.parametrize("flags", [FIRST, SHARDED, CUT], ids=["first", "third", "cut"])
def test_workers_draw_what_one_process_draws(flags: dict[str, Any]) -> None:
    """Each drew the same numbers for its part, or others for what all hold, without a word."""
    assert world(2).run(differences, flags) == [[], []]


def seeded_apart() -> tuple[list[float], list[float], float]:
    model = laid_out(CUT)
    torch.manual_seed(5 + fleet.worker_index())
    held = model[2].bias  # all workers have all of it
    with torch.no_grad():
        held.add_(torch.randn_like(held))
        model[0].weight.normal_()
    cut = [*model[0].weight.full_tensor()[:, 0].tolist()]
    return held.to_local().tolist(), cut, float(torch.rand(()))


def test_the_first_worker_draws_for_those_with_other_seeds() -> None:
    (first, whole_of_first, _), (second, whole_of_second, own) = world(2).run(seeded_apart)
    assert first == second
    assert whole_of_first == whole_of_second
    torch.manual_seed(6)
    assert own == float(torch.rand(()))  # what this worker draws by itself goes on
