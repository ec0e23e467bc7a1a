"""Composition: contracts decide the order and refuse, always with a reason."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import fleetx.strategies  # noqa: F401
from fleetx import PlanError
from fleetx.plan import option
from fleetx.plan.compose import Request, compose
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.strategy import REGISTRY, Plan, Strategy


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    kept = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(kept)


def names(plan: Plan) -> list[str]:
    return [strategy.name for strategy in plan.strategies]


def ask(*strategies: str) -> Request:
    return Request(strategies={name: {} for name in strategies})


def test_nothing_asked_is_plain_data_parallel() -> None:
    plan = compose(ask(), 4)
    assert names(plan) == ["eager", "data_parallel"]
    assert plan.mesh == {"pp": 1, "dp": 4, "sharding": 1, "tp": 1}


def test_phases_decide_the_order_whatever_was_asked_first() -> None:
    class Late(Strategy, name="late"):
        contract = Contract(phase=Phase.RULE)

    class Soon(Strategy, name="soon"):
        contract = Contract(phase=Phase.MEMORY)

    assert names(compose(ask("late", "soon"), 1)) == ["eager", "soon", "data_parallel", "late"]
    assert names(compose(ask("soon", "late"), 1)) == names(compose(ask("late", "soon"), 1))
    assert Late.name == "late"
    assert Soon.name == "soon"


def test_two_providers_of_one_capability_are_refused() -> None:
    class Other(Strategy, name="other"):
        contract = Contract(phase=Phase.CARRIER, provides=frozenset({"carrier"}))

    class Another(Strategy, name="another"):
        contract = Contract(phase=Phase.CARRIER, provides=frozenset({"carrier"}))

    assert Other.name in names(compose(ask("other"), 1))
    assert "data_parallel" not in names(compose(ask(Another.name), 1))
    with pytest.raises(PlanError, match=r"other and another both provide the way in .*Turn one"):
        compose(ask("other", "another"), 1)


def test_a_missing_capability_is_refused() -> None:
    class Needy(Strategy, name="needy"):
        contract = Contract(phase=Phase.CODEC, requires=frozenset({"gold"}))

    with pytest.raises(
        PlanError,
        match=r"needy needs gold, and there is none with the other strategies",
    ):
        compose(ask(Needy.name), 1)


def test_a_listed_conflict_gives_its_reason_from_either_side() -> None:
    class Salt(Strategy, name="salt"):
        contract = Contract(phase=Phase.MEMORY, conflicts={"sugar": "they dissolve each other."})

    class Sugar(Strategy, name="sugar"):
        contract = Contract(phase=Phase.MEMORY)

    for asked in (ask(Salt.name, Sugar.name), ask("sugar", "salt")):
        with pytest.raises(PlanError, match=r"salt cannot train together with sugar: they dis"):
            compose(asked, 1)


def test_a_strategy_without_a_file_is_refused_in_a_plain_sentence() -> None:
    with pytest.raises(PlanError) as caught:
        compose(ask("warp_drive"), 1)
    assert str(caught.value) == (
        "strategy.warp_drive = True cannot be in force: this version of fleetx does not have "
        "warp_drive yet. Set strategy.warp_drive = False."
    )


def test_an_option_that_nobody_reads_is_refused() -> None:
    request = Request(options={"sync_batch_norm": True}, changed={"sync_batch_norm": False})
    with pytest.raises(PlanError, match=r"sync_batch_norm = True cannot be in force.*at False"):
        compose(request, 1)


def test_an_option_that_somebody_reads_passes() -> None:
    request = Request(options={"fuse_grad_size_in_MB": 4}, changed={"fuse_grad_size_in_MB": 32})
    assert compose(request, 2).options["fuse_grad_size_in_MB"] == 4


def test_options_reach_the_strategy() -> None:
    class Tuned(Strategy, name="tuned"):
        contract = Contract(phase=Phase.MEMORY)

        @dataclass(frozen=True, kw_only=True)
        class Config(option.Config):
            k_steps: int = 1

    plan = compose(Request(strategies={"tuned": {"k_steps": 7}}), 1)
    assert plan.strategies[1].config == Tuned.Config(k_steps=7)
    assert Tuned.Config.label == "tuned_configs"


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="strategy 'eager' is registered by"):

        class Twin(Strategy, name="eager"):
            contract = Contract(phase=Phase.DRIVE)
