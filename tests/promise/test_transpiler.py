"""Every option of ``DistributeTranspilerConfig`` asks for something or is refused."""

from typing import Any

import pytest

import fleetx as fleet
from fleetx.config.transpiler import _Options
from fleetx.plan.option import annotations, default
from tests.promise.options import Option

COMPANY: dict[str, dict[str, Any]] = {
    "runtime_split_send_recv": {"sync_mode": False},
    "half_async": {"sync_mode": False, "runtime_split_send_recv": True},
    "geo_sgd_mode": {"sync_mode": False},
    "geo_sgd_need_push_nums": {"sync_mode": False, "geo_sgd_mode": True},
}
"""What an option is about; without it, it is refused."""


def asked(**settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the configuration asks for, in the words of the plan."""
    config = fleet.DistributeTranspilerConfig()
    for name, value in settings.items():
        setattr(config, name, value)
    return config.strategy(fleet.DistributedStrategy()).explicit(), config.split()


@pytest.mark.parametrize("name", list(annotations(_Options)))
def test_every_word_asks_for_something(name: str) -> None:
    option = Option("", name, annotations(_Options)[name], default(_Options, name))
    company = COMPANY.get(name, {})
    assert asked(**company) != asked(**company, **{name: option.other()})
    if company:
        with pytest.raises(ValueError, match=name):
            asked(**{name: option.other()})


@pytest.mark.parametrize("name", ["half_async", "runtime_split_send_recv"])
def test_two_ways_to_exchange_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = True and geo_sgd_mode = True ask for two"):
        asked(sync_mode=False, geo_sgd_mode=True, **{name: True})
