"""Shared randomness: ranks draw the same numbers, and their own go on undisturbed."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from fleetx.graph.recording import Recorder
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


def test_whoever_leads_a_forward_may_begin_for_it() -> None:
    random = SharedRandomness(1, torch.device("cpu"))
    draw = random.around(lambda: torch.rand(4))
    expected = [draw(), draw()]
    random.count = 0
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with random.begun():
        assert torch.equal(draw(), expected[0])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(draw(), expected[1])
    assert random.count == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_replay_draws_what_the_usual_forward_would() -> None:
    device = torch.device("cuda")
    random, recorder = SharedRandomness(1, device), Recorder(device)
    draw = random.around(lambda: nn.functional.dropout(torch.ones(1000, device=device)))
    expected = [draw() for _ in range(4)]
    random.count = 0
    torch.manual_seed(5)
    before = torch.cuda.get_rng_state()
    with random.begun():
        recording = recorder.record(draw)
        found = [recording.replay()]
    for _ in range(3):
        with random.begun():
            found.append(recording.replay())
    assert torch.equal(torch.cuda.get_rng_state(), before)
    for ours, usual in zip(found, expected, strict=True):
        assert torch.equal(ours, usual)
    assert len({tuple(mask.tolist()) for mask in found}) == 4


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
