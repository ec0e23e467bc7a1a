"""The rule of the loss scale against Paddle's own, and the unscaling of gradients."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from fleetx.strategies.amp.loss_scaling import Growth, LossScale, advance_, unscale_
from fleetx.testing import world
from tests.strategies.layerwise.layers import DEVICES

CASES = json.loads((Path(__file__).parents[2] / "golden" / "update_loss_scaling.json").read_text())[
    "cases"
]
LONG = "seed004_doc_defaults_long"


def replay(
    options: dict[str, Any], flags: list[int], device: str = "cpu"
) -> list[tuple[float, int, int]]:
    """Scale and counters after every update."""
    options = {k: v for k, v in options.items() if k != "flags"}
    state = LossScale.starting_at(options.pop("init_loss_scaling"), device)
    seen = []
    for flag in flags:
        advance_(state, torch.tensor([float(flag)], device=device), Growth(**options))
        seen.append((state.scale.item(), int(state.good), int(state.bad)))
    return seen


def rows(case: dict[str, Any]) -> list[tuple[float, int, int]]:
    return [(row["loss_scaling"], row["good_steps"], row["bad_steps"]) for row in case["rows"]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [name for name in CASES if name != LONG])
def test_scale_and_counters_are_those_of_paddle(name: str, device: str) -> None:
    case = CASES[name]
    assert [row["found_inf"] for row in case["rows"]] == case["hyperparameters"]["flags"]
    assert replay(case["hyperparameters"], case["hyperparameters"]["flags"], device) == rows(case)


@pytest.mark.parametrize("device", DEVICES)
def test_the_scale_becomes_neither_infinite_nor_less_than_one(device: str) -> None:
    options = {
        "incr_every_n_steps": 1,
        "decr_every_n_nan_or_inf": 1,
        "incr_ratio": 2.0**100,
        "decr_ratio": 2.0**-100,
        "init_loss_scaling": 2.0,
    }
    seen = replay(options, [0, 0, 1, 1], device)
    assert seen == [(2.0**101, 0, 0), (2.0**101, 0, 0), (2.0, 0, 0), (1.0, 0, 0)]


def test_a_thousand_updates_double_the_scale_as_in_paddle() -> None:
    theirs = rows(CASES[LONG])
    ours = replay(CASES[LONG]["hyperparameters"], [0] * 1003 + [1, 1])
    at = [row["index"] for row in CASES[LONG]["rows"]]
    assert [ours[step] for step in at] == theirs


def test_formats_stay_what_they_were() -> None:
    state = LossScale.starting_at(8.0, "cpu")
    growth = Growth(incr_every_n_steps=1, decr_every_n_nan_or_inf=1, incr_ratio=2.0, decr_ratio=0.5)
    for flag in (0.0, 1.0):
        before = [(t.data_ptr(), t.dtype, t.shape) for t in state]
        advance_(state, torch.tensor([flag]), growth)
        assert [(t.data_ptr(), t.dtype, t.shape) for t in state] == before


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_number_that_is_not_finite_is_found(bad: float, place: int) -> None:
    gradients = [torch.ones(3), torch.ones(2, 2, dtype=torch.float64), torch.ones(4).bfloat16()]
    scale = torch.tensor(8.0)
    assert unscale_(gradients, scale).tolist() == [0.0]
    assert all((g == 1 / 8).all() for g in gradients)
    gradients[place].view(-1)[-1] = bad
    assert unscale_(gradients, scale).tolist() == [1.0]


def test_no_gradient_is_no_overflow() -> None:
    assert unscale_([], torch.tensor(8.0)).tolist() == [0.0]


def sparse_gradient() -> Tensor:
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    return table.weight.grad


def test_sparse_and_complex_gradients_are_unscaled_in_place() -> None:
    sparse, pairs = sparse_gradient(), torch.full((2,), 4 + 8j)
    assert unscale_([sparse, pairs], torch.tensor(4.0)).tolist() == [0.0]
    assert sparse.to_dense()[[1, 3]].tolist() == [[0.5, 0.5], [0.25, 0.25]]
    assert pairs.tolist() == [1 + 2j, 1 + 2j]
    sparse._values()[0] = float("inf")
    assert unscale_([sparse], torch.tensor(4.0)).tolist() == [1.0]


@world(2)
def test_of_a_gradient_spread_over_ranks_each_looks_at_its_part() -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.full((4, 2), 8.0)
    whole[3, 1] = float("inf")  # in the half of rank 1
    gradient = distribute_tensor(whole, mesh, [Shard(0)])
    assert unscale_([gradient], torch.tensor(4.0)).tolist() == [float(rank)]
    assert gradient.to_local()[0].tolist() == [2.0, 2.0]
