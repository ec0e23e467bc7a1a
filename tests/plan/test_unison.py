"""Deeds of all workers fail on all of them or on none, and nobody is left waiting."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import fleetx as fleet
from fleetx import PlanError, roles
from fleetx.plan.all_or_none import all_or_none
from fleetx.testing import world


def deeds(culprits: tuple[int, ...]) -> list[Any]:
    """What three deeds of all workers end in, of which the second fails on some of them."""
    roles.start(is_collective=True)
    found: list[Any] = []

    def second() -> str:
        if roles.worker_index() in culprits:
            raise KeyError("broken")
        return "fine"

    for deed in (lambda: "well", second, roles.worker_index):
        try:
            found.append(all_or_none(deed))
        except (KeyError, PlanError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_what_fails_on_one_worker_fails_on_all() -> None:
    first, second = world(2).run(deeds, (1,))
    assert first == [
        "well",
        "PlanError: all workers stop, because one cannot go on. worker 1: KeyError: 'broken'",
        0,
    ]
    assert second == ["well", "KeyError: 'broken'", 1]


def test_all_may_fail_in_their_own_words_or_none() -> None:
    assert world(2).run(deeds, (0, 1)) == [["well", "KeyError: 'broken'", r] for r in range(2)]
    assert world(2).run(deeds, ()) == [["well", "fine", rank] for rank in range(2)]


# Checks of a model of which each rank has a stage.


class Stages(nn.Module):
    """Two stages, of which the second alone has norms."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, wide, bias=False)
        self.second = nn.Linear(wide, 4)
        self.norm = nn.LayerNorm(4)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.first(x)))


class Tied(nn.Module):
    """The last stage holds the first parameter under another name than the optimizer knows."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.second.weight = self.first.weight

    forward = Stages.forward


def outcome(settings: dict[str, Any], late: bool, kind: type[nn.Module], wide: int) -> Any:
    """Which parameters of each rank are excluded from the rule, or what it raised."""
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.pipeline_configs = {"split": ["second"], "schedule_mode": "F-then-B"}
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    plain = kind(wide)

    def made(model: nn.Module) -> torch.optim.Optimizer:
        if strategy.lamb:
            return torch.optim.Adam(model.parameters(), lr=0.01)
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    given = None if late else made(plain)
    try:
        model = fleet.distributed_model(
            plain, criterion=nn.functional.mse_loss, sample=torch.zeros(2, 4)
        )
        running = fleet.distributed_optimizer(given or made(model))
        model.train_batch((torch.randn(4, 4), torch.randn(4, 4)))
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    names = {p: name for name, p in model.named_parameters()}
    groups = running.param_groups
    return sorted(names[g["params"][at]] for g in groups for at in g.get("excluded", ()))


def excluding(rule: str, *patterns: str) -> dict[str, Any]:
    return {rule: True, f"{rule}_configs": {"exclude_from_weight_decay": [*patterns]}}


@pytest.mark.parametrize("late", [False, True], ids=["made before", "made from the stage"])
@pytest.mark.parametrize("rule", ["lars", "lamb"])
def test_a_pattern_may_match_on_one_stage_only(rule: str, late: bool) -> None:
    for pattern, expected in (
        ("first", [["first.weight"], []]),
        ("layer_norm", [[], ["norm.bias", "norm.weight"]]),
        (".b", [[], ["norm.bias", "second.bias"]]),
    ):
        assert world(2).run(outcome, excluding(rule, pattern), late, Stages, 8) == expected


def test_a_tied_parameter_counts_where_another_name_of_it_lives() -> None:
    found = world(2).run(outcome, excluding("lamb", "norm"), False, Tied, 4)
    assert found == [[], ["norm.bias", "norm.weight"]]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (excluding("lars", "third"), "has 'third', which matches no parameter"),
        (excluding("lamb", "w", "b"), "excludes every parameter"),
        ({"amp": True, "amp_configs": {"custom_black_varnames": ["third"]}}, "has 'third', which"),
    ],
    ids=["no match", "all match", "no parameter"],
)
def test_what_no_stage_has_is_refused_by_all(settings: dict[str, Any], reason: str) -> None:
    told = world(2).run(outcome, settings, True, Stages, 8)
    assert all(reason in text for text in told), told


class Mixed(Stages):
    """Halves on one stage alone."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.second = self.second.half()


def test_what_one_stage_refuses_stops_all() -> None:
    first, second = world(2).run(outcome, {"amp": True}, True, Mixed, 8)
    assert second.startswith("PlanError: the parameter 'second.weight' is torch.float16")
    assert first.startswith("PlanError: all workers stop, because one cannot go on. worker 1: Pl")
    assert "'second.weight' is torch.float16" in first


class Narrow(nn.Linear):
    @override
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input if len(input) > 1 else input.view(-1, 3))


class Fussy(Stages):
    """One stage refuses every micro-batch, which has one row."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.first = Narrow(4, wide, bias=False)


def test_a_stage_that_cannot_run_a_batch_stops_all() -> None:
    first, second = world(2).run(trouble, Fussy)
    assert "shape '[-1, 3]' is invalid" in first
    assert "stage 0 of the pipeline, on another worker, cannot run a batch" in second
    assert "shape '[-1, 3]' is invalid" in second


def trouble(kind: type[nn.Module]) -> str:
    try:
        return str(outcome({}, True, kind, 8))
    except RuntimeError as error:
        return str(error)


def test_next_to_other_axes_too() -> None:
    """Four workers: two stages, and two that exchange gradients or cut layers."""
    four, large = world(4), 4096
    cut = {"tensor_parallel_degree": 2, "column": ["first"], "row": ["second"]}
    told = four.run(
        outcome, {"tensor_parallel": True, "tensor_parallel_configs": cut}, True, Stages, 7
    )
    assert all("tensor_parallel_configs" in text for text in told), told
    told = four.run(outcome, {"sync_batch_norm": True}, True, Stages, 8)
    assert all("the model has no BatchNorm" in text for text in told), told
    told = four.run(outcome, {"dgc": True}, True, Stages, 8)
    assert all("would compress nothing" in text for text in told), told
    assert four.run(outcome, {"dgc": True, "fp16_allreduce": True}, True, Stages, large) == [[]] * 4
