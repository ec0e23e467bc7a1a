"""Making replicas equal."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fleetx.comm import replicas
from fleetx.comm.replicas import Drift, average, buckets, copy_from_first_rank
from fleetx.testing import world


def mixed() -> list[torch.Tensor]:
    rank = dist.get_rank()
    return [
        torch.full((3, 2), float(rank)),
        torch.tensor(rank),
        torch.full((5,), 10.0 * rank, dtype=torch.float64),
        torch.full((2, 2), rank + 1.0).T,
    ]


def group() -> dist.ProcessGroup:
    found = dist.group.WORLD
    assert found is not None
    return found


@world(2)
def test_copies_are_the_first_ranks_whatever_the_types() -> None:
    tensors = mixed()
    copy_from_first_rank(tensors, group())
    assert [float(t.flatten()[0]) for t in tensors] == [0.0, 0.0, 0.0, 1.0]


@world(2)
def test_averages_are_exact_and_in_place() -> None:
    tensors = [t for t in mixed() if t.is_floating_point()]
    average(tensors, group())
    assert [float(t.flatten()[0]) for t in tensors] == [0.5, 5.0, 1.5]
    assert tensors[0].shape == (3, 2)


def test_buckets_hold_one_type_and_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "BUCKET_BYTES", 32)
    tensors = [torch.zeros(4), torch.zeros(2, dtype=torch.int64), torch.zeros(4), torch.zeros(9)]
    found = list(buckets(tensors))
    assert [[t.numel() for t in bucket] for bucket in found] == [[4, 4], [9], [2]]
    assert list(buckets([])) == []


def test_what_drifts_is_what_is_trained_and_running_statistics() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].requires_grad_(False)
    drift = Drift(model)
    drift.note()
    shapes = [tuple(t.shape) for t in drift.to_average()]
    assert shapes == [(2,)] * 4, "scale, shift, mean and variance; no counter, nothing frozen"


def test_what_was_trained_and_is_frozen_now_has_drifted_until_the_next_meeting() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    first, second = [list(layer.parameters()) for layer in model]
    drift = Drift(model)
    for frozen in (False, True):
        model[0].requires_grad_(not frozen)
        drift.note()
    assert [id(t) for t in drift.to_average()] == [id(p) for p in first + second]
    drift.note()
    assert [id(t) for t in drift.to_average()] == [id(p) for p in second]
    drift.note_all()
    assert [id(t) for t in drift.to_average()] == [id(p) for p in first + second]
