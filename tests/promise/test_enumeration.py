"""No option joins without an observer."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.strategy import REGISTRY, Strategy
from tests.promise.answers import ALL, PROGRAMS, SERVERS, WORKERS, Always
from tests.promise.options import every


def unanswered() -> list[str]:
    return sorted(every().keys() - ALL.keys())


def test_every_option_has_an_observer_or_a_refusal() -> None:
    assert unanswered() == [], "say in tests/promise/answers.py how it is seen to be in force"


def test_no_answer_is_left_of_an_option_that_is_gone() -> None:
    assert sorted(ALL.keys() - every().keys()) == []
    assert len(ALL) == len(WORKERS) + len(PROGRAMS) + len(SERVERS), "one answer for each"


def test_what_is_exempt_says_why() -> None:
    exempt = {name: answer for name, answer in ALL.items() if isinstance(answer, Always)}
    assert all(name in PROGRAMS for name in exempt), "nothing that a strategy does is exempt"
    assert all(answer.why.endswith(".") for answer in exempt.values())


@pytest.fixture
def _registry() -> Iterator[None]:
    kept = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(kept)


@pytest.mark.usefixtures("_registry")
def test_a_new_option_is_noticed() -> None:
    class Newcomer(Strategy, name="newcomer"):
        contract = Contract(phase=Phase.MEMORY)

        @dataclass(frozen=True, kw_only=True)
        class Config(option.Config):
            depth: int = 1

    assert unanswered() == ["newcomer", "newcomer_configs.depth"]
    assert Newcomer.name == "newcomer"
