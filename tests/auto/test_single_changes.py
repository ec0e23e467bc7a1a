"""One flag at a time: what the planner may change, and what a user names."""

from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx.auto.choose import subject_of
from fleetx.auto.single_changes import Change, hindrance, single_changes
from fleetx.plan.error import PlanError


def changes(workers: int = 1, *, wide: int = 8, device: str = "cpu", **more: Any) -> list[Change]:
    model = nn.Sequential(*(nn.Linear(wide, wide) for _ in range(4)))
    subject = subject_of(model, sample=torch.ones(8, wide), device=torch.device(device))
    strategy = fleet.DistributedStrategy()
    for name, value in more.pop("given", {}).items():
        setattr(strategy, name, value)
    return single_changes(strategy, subject, workers, **more)


def flags(*args: Any, **kwargs: Any) -> list[str]:
    return sorted({change.flag for change in changes(*args, **kwargs)})


def test_what_leaves_the_update_as_it_is() -> None:
    assert flags() == ["amp"]
    assert flags(device="cuda") == ["amp", "compile"]
    assert flags(2) == ["amp", "sharding", "tensor_parallel"]
    assert flags(2, driven=True) == ["amp", "pipeline", "sharding", "tensor_parallel"]
    assert all(change.same_update for change in changes(2, driven=True))


def test_a_captured_step_needs_whole_batches() -> None:
    for workers in (1, 2):
        assert "cuda_graph" in flags(workers, device="cuda", driven=True)
        assert "cuda_graph" not in flags(workers, device="cuda")


def test_what_is_on_is_tried_without() -> None:
    found = changes(
        given={"amp": True, "recompute": True, "recompute_configs": {"checkpoints": ["0"]}}
    )
    assert [change.words for change in found] == [
        "strategy.amp = False",
        "strategy.recompute = False",
    ]
    assert not found[0].strategy.amp
    assert found[0].strategy.recompute


@pytest.mark.parametrize(
    ("flag", "workers", "reason"),
    [
        ("pipeline", 2, "train with model.train_batch"),
        ("sharding", 1, "it spreads the model over workers, and there is one"),
        ("fuse_grad_size_in_MB", 1, "one worker exchanges nothing"),
        ("fuse_grad_size_in_MB", 2, "buckets would be the same"),
        ("localsgd", 2, "dgc needs gradients in buckets"),
    ],
)
def test_why_nothing_of_a_flag_can_be_tried(flag: str, workers: int, reason: str) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.dgc = flag == "localsgd"
    subject = subject_of(nn.Linear(8, 8), sample=torch.ones(8, 8), device=torch.device("cpu"))
    assert not single_changes(strategy, subject, workers, named=[flag])
    assert reason in hindrance(flag, strategy, subject, workers, driven=False)


def test_others_only_if_they_are_named() -> None:
    found = changes(2, named=["fp16_allreduce", "gradient_merge"])
    assert {change.flag: change.same_update for change in found} == {
        "fp16_allreduce": False,
        "gradient_merge": True,
    }
    assert not found[0].strategy.amp


def test_what_the_planner_would_not_choose_here_may_leave_the_update_as_it_is() -> None:
    for device in ("cpu", "cuda"):
        found = changes(device=device, named=["compile", "cuda_graph"], driven=True)
        assert {change.flag: change.same_update for change in found} == {
            "compile": True,
            "cuda_graph": True,
        }


def test_buckets_only_where_there_would_be_others() -> None:
    name = "fuse_grad_size_in_MB"
    assert name not in flags(2)
    assert name not in flags(1, wide=2048)
    sizes = [change.strategy.fuse_grad_size_in_MB for change in changes(2, wide=2048, named=[name])]
    assert sizes == [8, 128]


def test_a_name_that_is_no_flag() -> None:
    with pytest.raises(PlanError, match="there is no flag 'amq' to try; did you mean"):
        changes(named=["amq"])
