"""Times of a plan follow from the numbers of a machine: the host's part, by counting."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx.auto.cluster import Cluster
from fleetx.auto.estimate import Estimate, estimate
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.pace import Pace
from fleetx.plan.subject import Subject
from tests.auto.test_search import cluster, subject

KIND = "cuda"
BLOCKS: dict[str, Any] = {
    "recompute": True,
    "recompute_configs": {"checkpoints": ["transformer.h.*"]},
}


def told(on: Cluster, workers: int = 1, **flags: Any) -> tuple[Estimate, Accounts]:
    strategy = fleet.DistributedStrategy()
    for name, value in flags.items():
        setattr(strategy, name, value)
    plain = subject(2)
    found = Subject(
        model=plain.model, optimizer=plain.optimizer, sample=plain.sample, device=torch.device(KIND)
    )
    accounts = Accounts(compose(strategy.request(), workers), found)
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
    called, accounts = told(slow_host(microseconds_per_segment=90.0), **BLOCKS)
    blocks = len(accounts.share(0).replayed)
    assert blocks > 1
    assert called.backward - bare.backward == pytest.approx(90e-6 * blocks)


def test_a_graph_of_the_card_leaves_nothing_to_the_host() -> None:
    on = slow_host(
        microseconds_per_module=7.0, microseconds_per_replay=30.0, microseconds_per_segment=90.0
    )
    eager, _ = told(on)
    graph, _ = told(on, cuda_graph=True)
    assert graph.forward + graph.backward < 0.01 * (eager.forward + eager.backward)


def test_a_captured_update_is_the_fused_one() -> None:
    for flags, fused in (({}, None), ({"cuda_graph": True}, True)):
        _, accounts = told(slow_host(), **flags)
        rule = accounts.share(0).rule
        assert rule is not None
        assert rule.accepted["fused"] is fused


def test_operators_of_a_backward_have_a_number_of_their_own() -> None:
    plain, accounts = told(slow_host())
    found, _ = told(slow_host(microseconds_per_gradient=25.0))
    work = accounts.share(0).work
    assert work is not None
    assert found.forward == plain.forward
    assert found.backward == pytest.approx(25e-6 * work.backwards.sum(), rel=0.01)


CUT: dict[str, Any] = {
    "tensor_parallel": True,
    "tensor_parallel_configs": {"plan": "transformer"},
    "hybrid_configs": {"mp_degree": 2},
}


def test_layers_that_are_cut_take_longer_to_start_and_to_update() -> None:
    plain, accounts = told(slow_host(), 2, **CUT)
    found, _ = told(slow_host(microseconds_per_dispatch=40.0), 2, **CUT)
    work = accounts.share(0).work
    assert work is not None
    assert 0 < work.dispatched.sum() < len(work.dispatched), "norms are not cut"
    assert found.forward - plain.forward == pytest.approx(40e-6 * work.dispatched.sum())
    longer = 40e-6 * (work.dispatched * work.backwards).sum()
    assert found.backward - plain.backward == pytest.approx(longer)
    assert found.update == plain.update, "a card has other things to do meanwhile"


def test_an_update_of_sharded_parameters_takes_a_cpu_longer() -> None:
    before = cluster(devices_per_node=2)
    after = replace(before, device=replace(before.device, microseconds_per_dispatch=40.0))
    flags: dict[str, Any] = {"sharding": True, "hybrid_configs": {"sharding_degree": 2}}
    plain, accounts = told(before, 2, **flags)
    found, _ = told(after, 2, **flags)
    assert found.update - plain.update == pytest.approx(40e-6 * 8 * len(accounts.share(0).held))
    assert found.forward == plain.forward, "layers compute with whole parameters"


def test_workers_that_share_cores_wait_less_for_each_other() -> None:
    flags: dict[str, Any] = {
        "pipeline": True,
        "pipeline_configs": {"accumulate_steps": 2, "split": ["transformer.h.1"]},
        "hybrid_configs": {"pp_degree": 2},
    }
    on = cluster(devices_per_node=2)
    free, _ = told(on, 2, **flags)
    assert free.bubble == pytest.approx(1 / 3)
    crowded, _ = told(replace(on, device=replace(on.device, crowding=1.2)), 2, **flags)
    assert crowded.waiting == pytest.approx(free.waiting - free.waiting * 0.5, rel=0.01)
    full, _ = told(replace(on, device=replace(on.device, crowding=2.0)), 2, **flags)
    assert full.waiting == 0, "while one stage waits, the other has its core"


def card(**rates: float) -> Cluster:
    """One that is the limit of everything, with rates such as ``eight=4`` for 8 bits."""
    bits = {"eight": "product 8", "sixteen": "product 16"}
    known = {"product 32": 1.0} | {bits[name]: rate for name, rate in rates.items()}
    on = cluster(devices_per_node=1, kind=KIND, teraflops=known, memory_gigabytes_per_second=1e6)
    return replace(on, device=replace(on.device, microseconds_per_kernel=0.0))


def test_products_in_float8_take_the_time_that_the_cluster_says() -> None:
    plain, _ = told(card(eight=1e4))
    found, accounts = told(card(eight=1e4), fp8=True)
    work = accounts.share(0).work
    assert work is not None
    share = work.operations[work.bits == 8].sum() / work.operations.sum()
    assert 0.3 < share < 1
    assert found.forward == pytest.approx((1 - share) * plain.forward, rel=0.1)


def test_a_rate_of_float8_that_nobody_wrote_down_is_that_of_16_bits() -> None:
    known, _ = told(card(eight=3.0, sixteen=3.0), fp8=True)
    found, _ = told(card(sixteen=3.0), fp8=True)
    assert found == known


def test_roundings_to_float8_take_the_time_of_memory() -> None:
    quick = card(eight=1e4)
    slow = replace(quick, device=replace(quick.device, memory_gigabytes_per_second=1.0))
    plain, found = told(slow)[0], told(slow, fp8=True)[0]
    assert found.forward > plain.forward
    rows: dict[str, Any] = {"fp8": True, "fp8_configs": {"scales": "row"}}
    assert told(slow, **rows)[0].forward > found.forward, "by operators of torch"
    assert told(slow, compile=True, **rows)[0].forward < told(slow, **rows)[0].forward


@pytest.mark.parametrize("scales", ["tensor", "row"])
def test_kernels_of_a_card_move_few_bytes_to_round_and_nothing_is_fused_with_them(
    scales: Literal["tensor", "row"],
) -> None:
    # All but the first and the last one multiply in float8.
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 48), nn.Linear(48, 16))
    device, rule = torch.device(KIND), torch.optim.AdamW(model.parameters())
    whole = Subject(model=model, optimizer=rule, sample=torch.randn(16, 32), device=device)
    strategy = fleet.DistributedStrategy()
    strategy.fp8 = True
    strategy.fp8_configs = {"scales": scales}
    accounts = Accounts(compose(strategy.request(), 1), whole)
    pace = Pace()
    for each in accounts.plan.strategies:
        pace = each.pace(pace, accounts.share(0))
    if scales == "tensor":
        read, written = 2 * 4, 2
        rows, weights = 16 * (64 + 48), 64 * 48
        assert pace.cast_by_kernels == rows * (read + written) + weights * (3 * 4 + 2)
        assert pace.casts == 0
    else:
        assert pace.cast_by_kernels == 0
        assert pace.casts > 0


SHARDED: dict[str, Any] = {"sharding": True, "hybrid_configs": {"sharding_degree": 2}}


def test_what_the_host_does_besides_takes_what_was_measured_of_it() -> None:
    chores = {"sharding unit": 1000.0, "sharding parameter": 100.0, "batch": 10.0, "unheard": 1.0}
    plain, accounts = told(slow_host(), 2, **SHARDED)
    found, _ = told(slow_host(chores=chores), 2, **SHARDED)
    assert found.chores["sharding unit"] == 1, "32 MB are a unit"
    parameters = len(accounts.share(0).parameters)
    assert found.chores["sharding parameter"] == parameters
    longer = 1e-6 * (1000 + 100 * parameters + 10)
    assert found.seconds - plain.seconds == pytest.approx(longer)


def test_units_that_are_gathered_apart_are_counted_apart() -> None:
    anchors = {"segment_anchors": ["transformer.h.0", "transformer.h.1"], "stage": 3}
    found, accounts = told(slow_host(), 2, **SHARDED, sharding_configs=anchors)
    gathered, scattered, *_ = accounts[0].exchanges
    assert found.chores["sharding unit"] == scattered.pieces == 3, "two, and what they leave"
    assert gathered.pieces == 6, "once more in the backward"


def test_every_update_of_a_dtensor_takes_what_was_measured_of_one() -> None:
    on = cluster(devices_per_node=2)
    free = replace(on, device=replace(on.device, chores={"update of a DTensor": 0.0}))
    slow = replace(on, device=replace(on.device, chores={"update of a DTensor": 50.0}))
    plain, accounts = told(free, 2, **CUT)
    found, _ = told(slow, 2, **CUT)
    held = len(accounts.share(0).held)
    assert found.update - plain.update == pytest.approx(50e-6 * held), "those that are not cut, too"


def merged(count: int, **flags: Any) -> float:
    """Seconds of a backward beyond those of as many that add to nothing."""
    on = cluster(devices_per_node=2, memory_gigabytes_per_second=1e-3)
    device = replace(on.device, microseconds_per_kernel=0.0)
    merge = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": count}}
    once, _ = told(replace(on, device=device), 2, **flags)
    found, _ = told(replace(on, device=device), 2, **flags, **(merge if count > 1 else {}))
    return found.backward - count * once.backward


def test_gradients_that_are_added_to_others_take_the_time_of_memory() -> None:
    _, accounts = told(cluster(devices_per_node=2), 2)
    size = sum(piece.size for piece in accounts.share(0).gradients.values())
    copied = 2 * size  # into buckets, once for an update and not for each batch
    assert merged(4) == pytest.approx((3 * 3 * size - 3 * copied) / 1e6, rel=1e-3)


def test_parts_of_gradients_are_added_faster_than_whole_ones() -> None:
    parts = merged(4, **SHARDED, sharding_configs={"stage": 2})
    whole = merged(4, **SHARDED, sharding_configs={"stage": 1})
    _, accounts = told(cluster(devices_per_node=2), 2, **SHARDED)
    size = sum(piece.size for piece in accounts.share(0).parameters.values())
    assert parts == pytest.approx(3 * 3 * size / 2 / 1e6, rel=0.01)
    scattered = 2 * size  # copied once for an update, and for each batch where parts are kept
    assert whole == pytest.approx((3 * 3 * size - 3 * scattered) / 1e6, rel=0.01)


def test_nothing_hides_the_last_bucket_of_gradients() -> None:
    slow = cluster(devices_per_node=2, memory_gigabytes_per_second=1e-3)  # backwards take long
    found, accounts = told(slow, 2)
    assert found.backward > 10 * found.exchange
    assert accounts[0].exchanges[0].moved_bytes < 32e6, "one bucket"
    assert found.exposed == pytest.approx(found.exchange)


def test_collectives_take_what_the_link_says_of_each() -> None:
    on = cluster(devices_per_node=2)
    rates, latencies = {"all-gather": 0.5}, {"reduce-scatter": 700.0}
    link = replace(on.inside, rates=rates, latencies=latencies)
    plain, accounts = told(on, 2, **SHARDED)
    found, _ = told(replace(on, inside=link, outside=link), 2, **SHARDED)
    gathered, scattered, *_ = accounts[0].exchanges
    longer = gathered.sent_bytes / 1e9 + 600e-6 * scattered.pieces
    assert found.exchange - plain.exchange == pytest.approx(longer)
