"""Workers let a card run their streams beside each other, unless the user has chosen otherwise."""

import ctypes
from typing import Any

import pytest

from fleetx import roles
from fleetx.roles import card_queues
from fleetx.roles.card_queues import VARIABLE, use_all_queues, why_few_queues


class Driver:
    """What ``libcuda`` answers to whoever asks for its context."""

    def __init__(self, status: int) -> None:
        self._status = status

    def cuCtxGetCurrent(self, context: Any) -> int:
        return self._status


def use_driver(monkeypatch: pytest.MonkeyPatch, status: int | None) -> None:
    def load(name: str) -> Driver:
        assert name == "libcuda.so.1"
        if status is None:
            raise OSError("no such file")
        return Driver(status)

    monkeypatch.setattr(ctypes, "CDLL", load)


def test_a_job_asks_for_all_queues_before_anything_asks_for_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def available() -> bool:
        asked.append("cards")
        return False

    monkeypatch.setattr("fleetx.roles.session.use_all_queues", lambda: asked.append("queues"))
    monkeypatch.setattr("torch.cuda.is_available", available)
    roles.start(is_collective=True)
    try:
        assert asked[0] == "queues"
        assert "cards" in asked
    finally:
        roles.stop()


@pytest.mark.parametrize("status", [None, 3])
def test_all_queues_are_used_unless_the_user_has_chosen(
    status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_driver(monkeypatch, status)
    empty, chosen = dict[str, str](), {VARIABLE: "1"}
    use_all_queues(empty)
    use_all_queues(chosen)
    assert empty == {VARIABLE: "32"}
    assert chosen == {VARIABLE: "1"}
    assert why_few_queues(empty) == ""
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1 is set" in why_few_queues(chosen)


@pytest.mark.parametrize("status", [0, 201])
def test_a_driver_that_has_started_is_left_alone_and_told_of(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_driver(monkeypatch, status)
    environ = dict[str, str]()
    use_all_queues(environ)
    assert environ == {}
    assert "asked for its GPUs" in why_few_queues(environ)
    assert f"set {VARIABLE}={card_queues.MOST}" in why_few_queues(environ)
