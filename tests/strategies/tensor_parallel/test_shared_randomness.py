"""Shared randomness: ranks draw the same numbers, and their own go on undisturbed."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from fleetx.strategies.tensor_parallel.shared_randomness import SharedRandomness, common_seed
from fleetx.testing import world


def test_shared_randomness_depends_on_seed_and_count_alone() -> None:
    def draws(seed: int, *, outer: int) -> list[Tensor]:
        torch.manual_seed(outer)
        draw = SharedRandomness(seed, torch.device("cpu")).around(lambda: torch.rand(4))
        return [draw(), draw()]

    first, again, other = draws(1, outer=1), draws(1, outer=2), draws(2, outer=1)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_shared_randomness_leaves_the_rest_alone() -> None:
    random = SharedRandomness(1, torch.device("cpu"))
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    random.around(lambda: torch.rand(100))()
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(5)
    with torch.no_grad():
        assert torch.equal(random.around(lambda: torch.rand(2))(), expected)
    assert random.count == 1


@world(4)
@pytest.mark.parametrize("asked", [-1, 3])
def test_a_seed_is_common_to_the_ranks_of_a_group_alone(asked: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    torch.manual_seed(10 + dist.get_rank())
    seed = common_seed(asked, mesh, torch.device("cpu"))
    found: list[Any] = [None] * 4
    dist.all_gather_object(found, seed)
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert found[0] != found[2]
    torch.manual_seed(20 + dist.get_rank())
    again = common_seed(asked, mesh, torch.device("cpu"))
    assert (again == seed) is (asked == 3), "the processes' own seeds count if none is set"
