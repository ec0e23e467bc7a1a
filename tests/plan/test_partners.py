"""A flag that acts between workers has a partner, or rests aloud in a job of one, or is refused."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import override

import fleetx as fleet
from fleetx import PlanError
from fleetx.config.job_options import JobOptions
from fleetx.config.switchboard import switches
from fleetx.plan.compose import Request, compose
from fleetx.plan.option import annotations
from fleetx.plan.strategy import REGISTRY
from fleetx.testing import world

SETTINGS: dict[str, dict[str, Any]] = {"tensor_parallel": {"column": ["0"]}}
"""What a strategy must be told to be switched on at all."""
VALUES: dict[str, Any] = {"fuse_all_reduce_ops": False, "fuse_grad_size_in_MB": 4}
"""Options whose opposite is not True or 2."""


def filled(*names: str) -> fleet.DistributedStrategy:
    strategy = fleet.DistributedStrategy()
    for name in names:
        whole = name in annotations(JobOptions)
        setattr(strategy, name, VALUES.get(name, _other(name)) if whole else True)
        if name in SETTINGS:
            setattr(strategy, f"{name}_configs", SETTINGS[name])
    return strategy


def _other(name: str) -> Any:
    return True if isinstance(getattr(JobOptions(), name), bool) else 2


def acting() -> Iterator[str]:
    """Every flag that says that it acts between workers: strategies, and what carriers read."""
    for name, kind in REGISTRY.items():
        if kind.contract.between:
            yield from sorted(kind.contract.reads)
            yield from () if kind.internal else (name,)


def alone_on(axis: str) -> set[str]:
    """Flags that act along other axes than this one."""
    readers: dict[str, set[str]] = {}
    for kind in REGISTRY.values():
        for name in (kind.name, *kind.contract.reads):
            readers.setdefault(name, set()).update(kind.contract.between)
    return {name for name in acting() if axis not in readers[name]}


def test_the_flags_of_the_issue_say_that_they_act_between_workers() -> None:
    known = set(acting())
    assert known >= {"fp16_allreduce", "dgc", "localsgd", "adaptive_localsgd", "sync_batch_norm"}
    assert known >= {"sharding", "pipeline", "tensor_parallel", "find_unused_parameters"}
    assert known >= {"fuse_all_reduce_ops", "fuse_grad_size_in_MB", "nccl_comm_num"}
    assert known >= {"use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks"}


@pytest.mark.parametrize("name", sorted(set(acting())))
def test_one_worker_names_what_rests(name: str) -> None:
    plan = compose(filled(name).request(), 1)
    assert f"strategy.{name}" in plan.resting
    told = filled(name).explain()
    assert f"At rest: strategy.{name}, because one worker has nobody to exchange with" in told
    if name in switches():
        assert f"{name:<18} is at rest" in told


LONELY = [
    (taker, name)
    for taker, axis in (("pipeline", "pp"), ("tensor_parallel", "tp"))
    for name in sorted(alone_on(axis))
]


@pytest.mark.parametrize(("taker", "name"), LONELY)
def test_a_flag_without_a_partner_is_refused_where_others_take_all_workers(
    taker: str, name: str
) -> None:
    strategy = filled(taker, name)
    if taker == "pipeline":
        strategy.hybrid_configs["pp_degree"] = 2
    else:
        strategy.hybrid_configs["mp_degree"] = 2
    with pytest.raises(PlanError, match=rf"strategy.{name} = .* has no partner: it acts betw"):
        strategy.explain(workers=2)


def test_a_degree_of_one_spreads_nothing_and_is_refused() -> None:
    strategy = filled("tensor_parallel")
    strategy.tensor_parallel_configs = {"tensor_parallel_degree": 1}
    with pytest.raises(PlanError, match=r"tensor_parallel = True has no partner.*tp to 2 or more"):
        strategy.explain(workers=2)


def test_a_partner_along_another_axis_of_the_data_is_enough() -> None:
    strategy = filled("sharding", "fp16_allreduce", "sync_batch_norm", "find_unused_parameters")
    assert "At rest" not in strategy.explain(workers=2)


def test_workers_that_meet_at_servers_only_are_several() -> None:
    """Each composes as a world of one, and yet the job has two workers."""
    served = Request(
        strategies={"parameter_server": {}, "tensor_parallel": {"column": ("0",)}},
        options={"mode": "ps"},
    )
    assert "strategy.tensor_parallel" in compose(served, 1, workers=1).resting
    with pytest.raises(PlanError, match="each of the 2 workers of this job trains by itself"):
        compose(served, 1, workers=2)


class Heard(logging.Handler):
    """Keeps the records of fleetx."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@world(1)
def test_what_rests_is_said_once_when_the_job_starts() -> None:
    heard = Heard()
    logging.getLogger("fleetx").addHandler(heard)
    strategy = filled("fp16_allreduce", "sync_batch_norm", "find_unused_parameters")
    fleet.init(is_collective=True, strategy=strategy)
    for _ in range(2):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model = fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        optimizer.minimize(model(torch.randn(4, 4)).square().mean())
    said = [r for r in heard.records if "At rest" in r.getMessage()]
    assert [record.levelno for record in said] == [logging.WARNING]
    assert said[0].getMessage() == (
        "At rest: strategy.sync_batch_norm, strategy.fp16_allreduce, "
        "strategy.find_unused_parameters, because one worker has nobody to exchange with."
    )
