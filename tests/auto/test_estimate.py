"""Times of a plan follow from the numbers of a machine: the host's part, by counting."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import fleetx as fleet
from fleetx.auto.cluster import Cluster
from fleetx.auto.estimate import Estimate, estimate
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.subject import Subject
from tests.auto.test_search import cluster, subject

KIND = "cuda"
BLOCKS = {"recompute": True, "recompute_configs": {"checkpoints": ["transformer.h.*"]}}


def told(on: Cluster, **flags: Any) -> tuple[Estimate, Accounts]:
    strategy = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    plain = subject(2)
    found = Subject(
        model=plain.model, optimizer=plain.optimizer, sample=plain.sample, device=torch.device(KIND)
    )
    accounts = Accounts(compose(strategy.request(), 1), found)
    return estimate(accounts, on), accounts


def slow_host(**changes: Any) -> Cluster:
    """A card that has nothing to do: the host is the limit of everything."""
    rates = {"product 32": 1e4, "product 16": 1e4}
    on = cluster(devices_per_node=1, kind=KIND, teraflops=rates, memory_gigabytes_per_second=1e6)
    return replace(on, device=replace(on.device, microseconds_per_kernel=10.0, **changes))


def test_calls_of_submodules_take_time_of_the_host() -> None:
    plain, accounts = told(slow_host())
    found, _ = told(slow_host(microseconds_per_module=7.0))
    work, trace = accounts.share(0).work, accounts.share(0).trace
    assert work is not None
    assert trace is not None
    assert work.calls.sum() == len(trace.calls)
    assert found.forward - plain.forward == pytest.approx(7e-6 * len(trace.calls))
    assert found.backward == plain.backward, "which runs in C++"


def test_what_is_replayed_takes_time_of_the_host_in_the_backward() -> None:
    plain, _ = told(slow_host())
    bare, accounts = told(slow_host(), **BLOCKS)
    found, _ = told(slow_host(microseconds_per_replay=30.0), **BLOCKS)
    trace = accounts.share(0).trace
    assert trace is not None
    inside = [one for one in trace.saved if one.path.startswith("transformer.h.")]
    assert bare.forward == plain.forward
    assert bare.backward > plain.backward
    assert found.backward - bare.backward == pytest.approx(30e-6 * len(inside))


def test_a_graph_of_the_card_leaves_nothing_to_the_host() -> None:
    on = slow_host(microseconds_per_module=7.0, microseconds_per_replay=30.0)
    eager, _ = told(on)
    graph, _ = told(on, cuda_graph=True)
    assert graph.forward + graph.backward < 0.01 * (eager.forward + eager.backward)


def test_operators_of_a_backward_have_a_number_of_their_own() -> None:
    plain, accounts = told(slow_host())
    found, _ = told(slow_host(microseconds_per_gradient=25.0))
    work = accounts.share(0).work
    assert work is not None
    assert found.forward == plain.forward
    assert found.backward == pytest.approx(25e-6 * work.backwards.sum(), rel=0.01)
