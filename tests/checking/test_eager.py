"""fleet.check on two workers: honest strategies pass, a broken one is found."""

import itertools
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
        "repeat": Verdict.EQUAL,
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
        assert "; most in 0." in str(report)
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
        report = examine(strategy)
        assert verdicts(report)["ranks"] is Verdict.WRONG
        assert "differ by up to" in str(report)
        assert "most in 0.0.weight" in str(report), "the torn parameter is named, and no other"


class Noisy(nn.Module):
    """Draws from a generator that no seed reaches, as numpy's or a fresh one is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        noise = torch.Generator().manual_seed(next(COUNT))
        return self.net(inputs + 0.1 * torch.randn(6, generator=noise))


COUNT = itertools.count()


@world(1)
def test_a_model_that_is_not_deterministic_is_found() -> None:
    model = Noisy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = data(16)
    strategy = fleet.DistributedStrategy()
    report = fleet.check(model, optimizer, strategy, [(inputs, targets)] * 3)
    assert verdicts(report)["repeat"] is Verdict.UNLIKE
    assert "the model is not deterministic" in str(report)
    assert "net." in str(report)
    assert not report.ok


@world(1)
def test_no_batches_are_refused() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="batches that are pairs"):
        fleet.check(model, optimizer, fleet.DistributedStrategy(), [])
