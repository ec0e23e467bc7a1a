"""Workers let a card run their streams beside each other, unless the user has chosen otherwise."""

import pytest
import torch

from fleetx import roles
from fleetx.roles import card_queues
from fleetx.roles.card_queues import VARIABLE, use_all_queues, why_few_queues


def test_a_job_asks_for_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("fleetx.roles.session.use_all_queues", lambda: asked.append(True))
    roles.start(is_collective=True)
    try:
        assert asked == [True]
    finally:
        roles.stop()


def test_all_queues_are_used_unless_the_user_has_chosen() -> None:
    empty, chosen = dict[str, str](), {VARIABLE: "1"}
    use_all_queues(empty)
    use_all_queues(chosen)
    assert empty == {VARIABLE: "32"}
    assert chosen == {VARIABLE: "1"}
    assert why_few_queues(empty) == ""
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1 is set" in why_few_queues(chosen)


def test_a_card_that_is_in_use_is_left_alone_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    environ = dict[str, str]()
    use_all_queues(environ)
    assert environ == {}
    assert "used the GPU before fleet.init()" in why_few_queues(environ)
    assert f"set {VARIABLE}={card_queues.MOST}" in why_few_queues(environ)
