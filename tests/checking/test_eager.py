"""fleet.check on two workers: honest strategies pass, a broken one is found."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn
from typing_extensions import override

import fleetx as fleet
from fleetx.checking.report import Report, Verdict
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.job import Job
from fleetx.plan.step import Step
from fleetx.plan.strategy import REGISTRY, Strategy
from fleetx.testing import world
from tests.engine.training import data, net, weights


@contextmanager
def own_registry() -> Iterator[None]:
    kept = dict(REGISTRY)
    try:
        yield
    finally:
        REGISTRY.clear()
        REGISTRY.update(kept)


def examine(strategy: fleet.DistributedStrategy) -> Report:
    model = nn.Sequential(net(), nn.Dropout(0.2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = weights(model)
    inputs, targets = data()
    rank = torch.distributed.get_rank()
    batches = [
        (inputs[i + rank : i + 16 : 2], targets[i + rank : i + 16 : 2]) for i in range(0, 96, 16)
    ]
    report = fleet.check(model, optimizer, strategy, batches)
    assert torch.equal(weights(model), before), "the user's model is left alone"
    assert not optimizer.state, "and so is the optimizer"
    return report


def verdicts(report: Report) -> dict[str, Verdict]:
    return {finding.subject: finding.verdict for finding in report.findings}


@world(2)
def test_honest_flags_pass() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.fp16_allreduce = True
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 2}
    report = examine(strategy)
    assert verdicts(report) == {
        "fp16_allreduce": Verdict.WITHIN,
        "gradient_merge": Verdict.IN_FORCE,
        "ranks": Verdict.EQUAL,
        "loss": Verdict.FINITE,
    }
    assert report.ok


@world(2)
def test_workers_that_drift_by_plan_are_no_fault() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.localsgd = True
    strategy.localsgd_configs = {"k_steps": 4}
    found = verdicts(examine(strategy))
    assert found["ranks"] is Verdict.APART  # updates 1 and 5 meet, the sixth is the last
    assert found["localsgd"] is Verdict.IN_FORCE


@world(2)
def test_a_flag_that_lies_is_found() -> None:
    with own_registry():

        class Liar(Strategy, name="liar"):
            contract = Contract(phase=Phase.GUARD, touches=frozenset({"scale"}), tolerance=1e-6)

            @override
            def step(self, step: Step, job: Job) -> Step:
                return replace(step, scale=lambda loss: 1.001 * step.scale(loss))

        strategy = fleet.DistributedStrategy()
        setattr(strategy, Liar.name, True)
        report = examine(strategy)
        assert verdicts(report)["liar"] is Verdict.WRONG
        assert not report.ok


@world(2)
def test_a_flag_that_tears_workers_apart_is_found() -> None:
    with own_registry():

        class Torn(Strategy, name="torn"):
            contract = Contract(phase=Phase.GUARD, touches=frozenset({"update"}))

            @override
            def step(self, step: Step, job: Job) -> Step:
                def update() -> bool:
                    done = step.update()
                    with torch.no_grad():
                        next(job.model.parameters()).add_(1e-6 * torch.distributed.get_rank())
                    return done

                return replace(step, update=update)

        strategy = fleet.DistributedStrategy()
        setattr(strategy, Torn.name, True)
        assert verdicts(examine(strategy))["ranks"] is Verdict.WRONG


@world(1)
def test_no_batches_are_refused() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="batches that are pairs"):
        fleet.check(model, optimizer, fleet.DistributedStrategy(), [])
