"""What ``explain()`` tells before a run is what ranks then hold and send."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx.plan.accounts import Needs
from fleetx.testing import world
from tests.plan.measured import Case, Measured, Words, batch, criterion, measure, told
from tests.rotation import rotating
from tests.strategies.fp8.stand_in import device_is_allowed

BFLOAT = {"amp": True, "amp_configs": {"dtype": "bfloat16"}}
PIPELINE = {"pipeline": True, "pipeline_configs": {"accumulate_steps": 4}}
CUT = {"pipeline": True, "pipeline_configs": {"accumulate_steps": 4, "split": ["blocks.1"]}}
TENSOR = {"tensor_parallel": True, "tensor_parallel_configs": {"plan": "transformer"}}
REPLAYED = {"recompute": True, "recompute_configs": {"checkpoints": ["blocks.?"]}}
MERGED = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}}


def stage(number: int, **more: Any) -> dict[str, Any]:
    return {"sharding": True, "sharding_configs": {"stage": number, **more}}


def mesh(**degrees: int) -> dict[str, Any]:
    return {"hybrid_configs": {f"{axis}_degree": ranks for axis, ranks in degrees.items()}}


def ordered(mode: str) -> dict[str, Any]:
    return PIPELINE | {"pipeline_configs": {"accumulate_steps": 4, "schedule_mode": mode}}


def compare(case: Case, workers: int) -> None:
    explained = told(case, workers)
    for rank, found in enumerate(world(workers, timeout=300).run(measure, case)):
        compare_rank(explained.rank(rank), found)


def compare_rank(needs: Needs, found: Measured) -> None:
    assert needs.parameters == pytest.approx(found.parameters, rel=0.05)
    assert needs.gradients == pytest.approx(found.gradients, rel=0.05)
    assert needs.state == pytest.approx(found.state, rel=0.05)
    assert needs.activations == pytest.approx(found.activations, rel=0.15)
    moved: Counter[str] = Counter()
    for one in needs.exchanges:
        moved[one.collective] += round(one.moved_bytes * (one.times or 0))
    # Flags of a few bytes, by which ranks agree, are not worth a line of their own.
    assert moved.keys() >= {name for name, size in found.sent.items() if size > 64}
    for collective, size in moved.items():
        assert size == pytest.approx(found.sent[collective], rel=0.05, abs=64), collective
    assert not needs.unknown


SMALL = {
    "sharding, amp and gradient_merge": Case(
        {**stage(3, segment_broadcast_MB=0.25), **BFLOAT, **MERGED}, batches=2, blocks=2
    ),
    "tensor_parallel and recompute": Case({**TENSOR, **REPLAYED, **mesh(mp=2)}, blocks=2),
    "pipeline": Case({**CUT, **mesh(pp=2)}, blocks=2),
}


@pytest.mark.parametrize("name", rotating([*SMALL], 3))
def test_two_ranks_hold_and_send_what_was_told(name: str) -> None:
    compare(SMALL[name], 2)


ALONE = {
    "data_parallel": Case({}),
    "amp": Case(BFLOAT),
    "fp16_allreduce": Case({"fp16_allreduce": True}),
    "gradient_merge": Case(MERGED, batches=2),
    "sharding 1": Case(stage(1)),
    "sharding 2": Case(stage(2)),
    "sharding 3": Case(stage(3)),
    "sharding 1 and gradient_merge": Case({**stage(1), **MERGED}, batches=2),
    "tensor_parallel": Case({**TENSOR, **mesh(mp=2)}),
    "tensor_parallel by position": Case(
        {
            "tensor_parallel": True,
            "tensor_parallel_configs": {"plan": "transformer", "sequence": ["blocks.?.ln?"]},
            **mesh(mp=2),
        }
    ),
    "tensor_parallel and amp": Case({**TENSOR, **BFLOAT, **mesh(mp=2)}),
    "pipeline": Case({**PIPELINE, **mesh(pp=2)}),
    "pipeline, all forwards first": Case({**ordered("F-then-B"), **mesh(pp=2)}),
    "pipeline, interleaved": Case({**ordered("interleaved"), **mesh(pp=2)}),
    "pipeline, zero-bubble": Case({**ordered("zero-bubble"), **mesh(pp=2)}),
    "pipeline and amp": Case({**PIPELINE, **BFLOAT, **mesh(pp=2)}),
    "recompute": Case(REPLAYED),
    "localsgd": Case({"localsgd": True}),
    "sync_batch_norm": Case({"sync_batch_norm": True}, model="pictures"),
    "clip and sharding": Case({**stage(3), "clip": True}),
    "clip and tensor_parallel": Case({**TENSOR, **mesh(mp=2), "clip": True}),
    "dgc": Case({"dgc": True}, adam=False),
    "resnet18": Case({}, model="pictures"),
    "resnet18 with amp": Case(BFLOAT, model="pictures"),
    "bert, sharding": Case(stage(3), model="bert"),
    "llama, tensor_parallel": Case({**TENSOR, **mesh(mp=2)}, model="llama"),
    "gpt2, pipeline": Case({**PIPELINE, **mesh(pp=2)}, model="gpt2"),
}
TOGETHER = {
    "data_parallel": Case({}),
    "sharding in small units": Case(stage(3, segment_broadcast_MB=0.25)),
    "copies of shares": Case({**stage(3), **mesh(dp=2, sharding=2)}),
    "pipeline and tensor_parallel": Case({**PIPELINE, **TENSOR, **mesh(pp=2, mp=2)}),
    "pipeline and sharding": Case({**PIPELINE, **stage(3), **mesh(pp=2, sharding=2)}),
    "pipeline and data_parallel": Case({**PIPELINE, **mesh(pp=2, dp=2)}),
    "tensor_parallel and sharding": Case({**TENSOR, **stage(2), **mesh(mp=2, sharding=2)}),
    "tensor_parallel, recompute and data_parallel": Case(
        {**TENSOR, **REPLAYED, **mesh(mp=2, dp=2)}
    ),
    "pipeline of four": Case({**PIPELINE, **mesh(pp=4)}),
}


@pytest.mark.rare
@pytest.mark.parametrize("name", ALONE)
def test_each_strategy_on_two_ranks(name: str) -> None:
    compare(ALONE[name], 2)


def measured_unsplit(case: Case) -> Measured:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SPLITS, False)
        return measure(case)


SPLITS = "fleetx.strategies.pipeline.stage.SPLITS_BACKWARD"


@pytest.mark.rare
def test_backwards_that_stay_whole_keep_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """So torch before 2.13 runs "zero-bubble"."""
    case = ALONE["pipeline, zero-bubble"]
    split = told(case, 2).rank(1).activations
    monkeypatch.setattr(SPLITS, False)
    explained = told(case, 2)
    kept = explained.rank(1).activations
    assert split is not None
    assert kept is not None
    assert kept < split
    for rank, found in enumerate(world(2, timeout=300).run(measured_unsplit, case)):
        compare_rank(explained.rank(rank), found)


def measured_in_float8(case: Case) -> Measured:
    with device_is_allowed():
        return measure(case)


FLOAT8: dict[str, dict[str, Any]] = {
    "alone": {},
    "by row": {"fp8_configs": {"scales": "row"}},
    "amp": BFLOAT,
    "amp, by row": {"fp8_configs": {"scales": "row"}, **BFLOAT},
    "recompute": REPLAYED,
    "pipeline": {**CUT, **mesh(pp=2)},
}


@pytest.mark.rare
@pytest.mark.parametrize("name", FLOAT8)
def test_products_in_float8(name: str) -> None:
    case = Case({"fp8": True, **FLOAT8[name]}, blocks=2)
    explained = told(case, 2)
    for rank, found in enumerate(world(2, timeout=300).run(measured_in_float8, case)):
        compare_rank(explained.rank(rank), found)


@pytest.mark.rare
@pytest.mark.parametrize("name", TOGETHER)
def test_strategies_in_company_on_four_ranks(name: str) -> None:
    compare(TOGETHER[name], 4)


def test_workers_that_do_not_exist_are_told_about() -> None:
    settings = {**TENSOR, **stage(3), **mesh(mp=2, sharding=4)}
    explained = told(Case(settings, blocks=2), 8)
    whole = told(Case({}, blocks=2), 1).rank(0)
    assert explained.workers == len(explained.ranks) == 8
    first = explained.rank(0)
    assert first.place == {"pp": 0, "dp": 0, "sharding": 0, "tp": 0}
    assert explained.rank(7).place == {"pp": 0, "dp": 0, "sharding": 3, "tp": 1}
    # All but norms and the biases of row layers is cut in eight.
    assert whole.parameters / 8 < first.parameters < whole.parameters / 7.8
    assert whole.state is not None
    assert first.state == pytest.approx(2 * first.parameters, rel=0.01)
    assert first.total > first.parameters + first.gradients
    assert "0 to 7" in explained
    assert {"tp", "sharding"} == {one.axis for one in first.exchanges}


def test_what_is_not_given_is_not_guessed() -> None:
    strategy = fleet.DistributedStrategy()
    bare = strategy.explain(Words(), workers=2).rank(0)
    assert (bare.state, bare.activations) == (None, None)
    sample, _ = batch("words")
    without = strategy.explain(Words(), workers=2, sample=sample).rank(0)
    assert without.activations
    assert without.unknown == (
        "what the criterion keeps, because none was given (criterion=, targets=)",
    )


def test_a_device_that_is_not_here_is_planned_for_on_the_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    sample, targets = batch("words")
    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    explained = strategy.explain(
        Words(blocks=1), sample=sample, criterion=criterion, targets=targets, device="cuda"
    )
    assert explained.rank(0).activations
    assert "because there is no cuda here" in explained


class Deciding(nn.Module):
    """Asks for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x) if float(x.sum()) > 0 else x
        return found


def test_a_forward_that_decides_by_numbers_is_named() -> None:
    explained = fleet.DistributedStrategy().explain(
        Deciding(), sample=torch.ones(2, 4), criterion=criterion, targets=torch.ones(2)
    )
    assert explained.rank(0).activations is None
    assert "Not known: what waits for backwards, because the forward cannot be" in explained
    assert explained.rank(0).parameters == 80


def test_a_rule_that_needs_numbers_has_a_state_that_is_not_known() -> None:
    class Asking(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                assert all(float(p.sum()) < 1e9 for p in group["params"])
            return super().step(closure)

    model = nn.Linear(4, 4)
    explained = fleet.DistributedStrategy().explain(
        model, optimizer=Asking(model.parameters(), lr=0.1)
    )
    assert explained.rank(0).state is None
    assert "the state of Asking, which needs numbers for its first step" in explained


def test_the_model_that_is_asked_about_stays_as_it_is() -> None:
    model = Words(blocks=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sample, targets = batch("words")
    fleet.DistributedStrategy().explain(
        model, workers=2, sample=sample, criterion=criterion, targets=targets
    )
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_arguments_without_a_model_are_refused() -> None:
    with pytest.raises(ValueError, match="an optimizer or a sample and no model"):
        fleet.DistributedStrategy().explain(sample=torch.ones(2))


def test_the_example_of_the_documentation_prints_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "strategy.md").read_text()
    _, _, section = page.partition("## What will it need?")
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", section, flags=re.DOTALL)[:2]
    exec(compile(code, "docs/strategy.md", "exec"), {})
    assert shown in capsys.readouterr().out
