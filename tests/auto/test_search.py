"""Plans for models of others: all legal, what was set stays, what fits comes first."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx.auto import search as searching
from fleetx.auto.cluster import Cluster, Device, Link, load
from fleetx.auto.search import ABOUT, Planned, Search
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.error import PlanError
from fleetx.plan.subject import Subject
from tests.libraries import transformers


def cluster(**changes: Any) -> Cluster:
    device: dict[str, Any] = {
        "kind": "cpu",
        "memory_gigabytes": 4.0,
        "teraflops": {"product 32": 0.05, "product 16": 0.02},
        "memory_gigabytes_per_second": 8.0,
        "microseconds_per_kernel": 8.0,
    }
    link: dict[str, Any] = {"gigabytes_per_second": 1.0, "microseconds": 100.0}
    link |= {key: changes.pop(key) for key in [*changes] if key in ("gigabytes_per_second", "busy")}
    device |= {key: changes.pop(key) for key in [*changes] if key in device}
    return Cluster(
        **{"nodes": 1, "devices_per_node": 4} | changes,
        device=Device(**device),
        inside=Link(**link),
        outside=Link(**link),
    )


def model() -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=128, n_positions=32, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config)


@functools.cache
def subject(samples: int) -> Subject:
    """One for all tests, for it keeps what it has found out."""
    with torch.device("meta"):
        net = model()
        ids = torch.zeros(samples, 32, dtype=torch.long)
    rule = torch.optim.AdamW(net.parameters())
    return Subject(model=net, optimizer=rule, sample={"input_ids": ids, "labels": ids})


def search(on: Cluster, samples: int = 8, **flags: Any) -> Search:
    """Without pipelines and merged batches, unless they are asked for: they take longest."""
    given = fleet.DistributedStrategy()
    for name, value in {"pipeline": False, "gradient_merge": False, **flags}.items():
        setattr(given, name, value)
    return Search(subject=subject(samples), cluster=on, given=given)


def names(planned: Planned) -> set[str]:
    return {strategy.name for strategy in planned.plan.strategies if not strategy.internal}


def test_every_plan_is_legal_and_keeps_the_samples_of_an_update() -> None:
    found = search(cluster())
    best = found.best()
    assert len(best) == 10
    for planned in best:
        strategy = found.strategy(planned.choice)
        plan = compose(strategy.request(), 4)
        assert plan.mesh == planned.plan.mesh
        assert {s.name for s in plan.strategies} == {s.name for s in planned.plan.strategies}
        assert planned.estimate.samples == 32
        assert planned.estimate.fits
    seconds = [planned.estimate.seconds for planned in best]
    alike = sum(1 for one in seconds if one <= ABOUT * min(seconds))
    assert max(seconds[:alike]) <= ABOUT * min(seconds)
    assert seconds[alike:] == sorted(seconds[alike:])
    assert len(names(best[0])) == min(len(names(planned)) for planned in best[:alike])


def test_changes_uphill_lead_to_what_all_plans_together_have_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for memory in (4.0, 2e-3):
        every = search(cluster(memory_gigabytes=memory))
        best = every.best()[0].estimate
        with monkeypatch.context() as patch:
            patch.setattr(searching, "EXHAUSTIVE", 0)
            uphill = search(cluster(memory_gigabytes=memory))
            found = uphill.best()[0].estimate
        assert len(uphill.looked_at) < len(every.looked_at)
        assert found.fits == best.fits
        assert found.seconds <= ABOUT * best.seconds


def test_sixteen_bits_are_chosen_where_they_are_faster_alone() -> None:
    slow, fast = ({"product 32": 0.05, "product 16": rate} for rate in (0.01, 0.5))
    other = {"sharding": False, "tensor_parallel": False, "recompute": False}
    for rates, chosen in ((slow, False), (fast, True)):
        on = cluster(teraflops=rates, microseconds_per_kernel=0.0)
        assert ("amp" in names(search(on, **other).best()[0])) is chosen


def test_what_the_user_set_stays() -> None:
    found = search(cluster(), amp=True, recompute=False, sharding=True)
    for planned in found.best():
        assert "amp" in names(planned)
        assert "recompute" not in names(planned)
    degrees = search(cluster(), hybrid_configs={"mp_degree": 2}, tensor_parallel=True)
    degrees.given.tensor_parallel_configs = {"plan": "transformer"}
    assert {planned.plan.mesh["tp"] for planned in degrees.best()} == {2}


def test_float8_is_chosen_by_nobody_but_the_user() -> None:
    rates = {"product 32": 0.05, "product 16": 0.02, "product 8": 1e3}
    quick = cluster(devices_per_node=1, nodes=1, kind="cuda", teraflops=rates)
    other = dict.fromkeys(["recompute", "gradient_merge", "cuda_graph"], False)
    assert not any("fp8" in names(planned) for planned in search(quick, **other).best())
    assert all("fp8" in names(planned) for planned in search(quick, fp8=True, **other).best())


def test_little_memory_leads_to_plans_that_need_less() -> None:
    roomy = search(cluster()).best()[0].estimate
    short = cluster(memory_gigabytes=roomy.memory * 0.6 / 1e9)
    best = search(short).best()[0].estimate
    assert best.fits
    assert best.memory < 0.6 * roomy.memory
    assert best.seconds >= roomy.seconds


def test_where_nothing_fits_the_least_comes_first() -> None:
    best = search(cluster(memory_gigabytes=1e-3)).best()
    assert not best[0].estimate.fits
    assert best[0].estimate.binding == "memory"
    sizes = [planned.estimate.memory for planned in best]
    assert sizes == sorted(sizes)


def test_slow_links_are_used_less() -> None:
    sent = [
        search(cluster(gigabytes_per_second=speed)).best()[0].estimate.sent for speed in (1e3, 1e-3)
    ]
    assert sent[1] <= sent[0]


def test_what_changes_the_mathematics_is_never_considered_by_itself() -> None:
    found = search(cluster())
    found.best()
    considered = {name for choice in found.looked_at for name, _ in choice.options}
    assert considered <= {"amp", "recompute", "sharding", "tensor_parallel"}
    allowed = search(cluster(), sharding=False, tensor_parallel=False)
    allowed.allow = ("localsgd",)
    allowed.best()
    assert "localsgd" in {name for choice in allowed.looked_at for name, _ in choice.options}


def test_a_batch_that_no_layout_divides_is_left_out_with_its_reason() -> None:
    found = search(cluster(), samples=1)
    found.given = fleet.DistributedStrategy()
    for name in ("pipeline", "sharding", "tensor_parallel"):
        setattr(found.given, name, False)
    assert found.best()
    assert any("cannot be dealt out" in reason for reason in found.refused)


def test_where_all_plans_are_refused_the_commonest_reasons_are_told() -> None:
    found = search(cluster(devices_per_node=3), samples=1)
    found.given.sharding = False
    found.given.gradient_merge = True
    found.given.gradient_merge_configs = {"k_steps": 3}
    found.given.pipeline = True
    found.given.pipeline_configs = {"accumulate_steps": 7}
    with pytest.raises(PlanError) as error:
        found.best()
    said = str(error.value)
    assert said.startswith("no plan is possible for 3 workers, because all were refused: ")
    assert "7 micro-batches" in said
    assert said.count("\n") == 0


def test_a_model_that_cannot_be_traced_is_refused_in_a_sentence() -> None:
    class ByNumbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if float(x.sum()) > 0 else x

    net = ByNumbers()
    rule = torch.optim.SGD(net.parameters(), lr=0.1)
    given = fleet.DistributedStrategy()
    numbers = Subject(model=net, optimizer=rule, sample=torch.ones(2, 4))
    with pytest.raises(PlanError, match="the forward cannot be followed without numbers") as error:
        Search(subject=numbers, cluster=cluster(), given=given).best()
    assert str(error.value).count("\n") == 0
    none = Subject(model=net, optimizer=rule)
    with pytest.raises(PlanError, match="give inputs of one worker's batch"):
        Search(subject=none, cluster=cluster(), given=given).best()


def mixtral(experts: str, **sizes: int) -> Subject:
    with torch.device("meta"):
        config = transformers.MixtralConfig(use_cache=False, **sizes)
        config._experts_implementation = experts
        net = transformers.MixtralForCausalLM(config)
        ids = torch.zeros(2, sizes.get("max_position_embeddings", 4096), dtype=torch.long)
    sample = {"input_ids": ids, "labels": ids}
    return Subject(model=net, optimizer=torch.optim.AdamW(net.parameters()), sample=sample)


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}


def test_a_mixture_of_experts_is_planned_and_its_products_are_counted() -> None:
    on, flags = cluster(devices_per_node=2), {"tensor_parallel": False, "recompute": False}
    found = search(on, **flags)
    found.subject = mixtral("grouped_mm", **SMALL)
    assert found.best()[0].estimate.fits
    work = Accounts(compose(fleet.DistributedStrategy().request(), 1), found.subject).share(0).work
    assert work is not None
    # Each of 2 x 16 words runs through 2 experts of 3 layers, in 2 blocks.
    experts = 2 * 2 * 16 * 2 * 3 * 2 * 32 * 48
    assert experts < work.operations.sum() < 2 * experts


def test_experts_that_are_chosen_by_numbers_are_refused_in_a_sentence() -> None:
    found = search(cluster())
    found.subject = mixtral("eager", **SMALL)
    with pytest.raises(PlanError, match=r"cannot be followed without numbers: Dynamic.*nonzero"):
        found.best()


@pytest.mark.rare
def test_mixtral_8x7b_is_planned_for_64_cards() -> None:
    on = load(Path(__file__).parents[2] / "docs" / "clusters" / "h200.yaml")
    subject = replace(mixtral("grouped_mm"), device=torch.device("cuda"))
    given = fleet.DistributedStrategy()
    best = Search(subject=subject, cluster=replace(on, nodes=8), given=given).best()
    assert best[0].estimate.fits
    assert best[0].estimate.bubble < 0.1
    assert "amp" in names(best[0])


@pytest.mark.rare
def test_seventy_billion_parameters_are_planned_for_1024_cards() -> None:
    with torch.device("meta"):
        config = transformers.LlamaConfig(
            hidden_size=8192,
            num_hidden_layers=80,
            num_attention_heads=64,
            num_key_value_heads=8,
            intermediate_size=28672,
            use_cache=False,
        )
        net = transformers.LlamaForCausalLM(config)
        ids = torch.zeros(2, 4096, dtype=torch.long)
    card = torch.device("cuda")
    sample, rule = {"input_ids": ids, "labels": ids}, torch.optim.AdamW(net.parameters())
    llama = Subject(model=net, optimizer=rule, sample=sample, device=card)
    on = load(Path(__file__).parents[2] / "docs" / "clusters" / "h200.yaml")
    found = Search(subject=llama, cluster=on, given=fleet.DistributedStrategy())
    best = found.best()
    assert len(found.looked_at) < 1000, "it takes about a minute of one core"
    assert {one.plan.mesh["pp"] for one in found.looked_at.values() if one} >= {1, 2, 4, 8}
    for planned in best:
        assert planned.estimate.fits
        assert planned.plan.mesh["tp"] <= 8
        assert planned.estimate.bubble < 0.5
        assert "amp" in names(planned)
    first = best[0].estimate
    assert first.bubble < 0.1
    # Three forwards and backwards of 70 billion parameters, and a fourth that is replayed.
    least = 6 * 70e9 * 2 * 4096 / (on.device.rate("product", 16))
    assert least < first.seconds < 4 * least


@pytest.mark.rare
def test_pipelines_are_considered() -> None:
    found = search(cluster(devices_per_node=2), samples=4)
    found.given = fleet.DistributedStrategy()
    found.best()
    planned = [one for one in found.looked_at.values() if one is not None]
    stages = [one for one in planned if one.plan.mesh["pp"] == 2]
    assert stages
    assert all(0 < one.estimate.bubble < 1 for one in stages)
