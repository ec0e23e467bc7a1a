"""What launchers tell each other."""

import time

import pytest
from torch.distributed import DistNetworkError, HashStore  # type: ignore[attr-defined]

from fleetx.launch import job_board as module
from fleetx.launch.failure import Failure
from fleetx.launch.job_board import JobBoard
from fleetx.launch.ports import listen
from fleetx.launch.store import TCPStore, serve


def failure(title: str, time: float) -> Failure:
    return Failure(title=title, node="a", exit_code=1, time=time, message="")


def test_a_failed_attempt_counts_once() -> None:
    store = HashStore()
    one, two = JobBoard(store), JobBoard(store)
    assert [one.count_failed(0), two.count_failed(0), two.count_failed(1)] == [1, 1, 2]


def test_the_earliest_failure_of_all_machines_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE", 0.05)
    store = HashStore()
    one, two = JobBoard(store), JobBoard(store)
    assert not one.failed()
    one.post(failure("late", 2.0))
    assert two.failed()
    two.post(failure("early", 1.0))
    assert one.first_failure() == two.first_failure() == failure("early", 1.0)


def test_a_failure_that_was_seen_is_known_after_its_keeper_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SETTLE", 0.0)
    keeper = serve(listen("127.0.0.1", 0, "--master"))
    other = TCPStore("127.0.0.1", keeper.port, wait_for_workers=False)
    board = JobBoard(other)
    JobBoard(keeper).post(failure("stopped", 1.0))
    assert board.failed()
    del keeper
    with pytest.raises(DistNetworkError):
        board.failed()
    assert board.first_failure() == failure("stopped", 1.0)


def test_a_silent_machine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    store = HashStore()
    one, two, three = JobBoard(store), JobBoard(store), JobBoard(store)
    for _ in range(40):
        clock[0] += 1.0
        assert one.beat(0, 0, 3) is None
        silent = three.beat(0, 2, 3)
        if clock[0] < 130:
            two.beat(0, 1, 3)
            assert silent is None
    assert clock[0] == 140.0
    assert silent is None, "ten seconds are not yet silence"
    clock[0] += module.SILENCE
    one.beat(0, 0, 3)
    assert three.beat(0, 2, 3) == 1


def test_the_first_machine_is_watched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    store = HashStore()
    one, two = JobBoard(store), JobBoard(store)
    one.beat(0, 0, 2)
    assert two.beat(0, 1, 2) is None
    clock[0] += module.SILENCE + 1
    assert two.beat(0, 1, 2) == 0


def test_the_time_between_two_attempts_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    store = HashStore()
    one, two = JobBoard(store), JobBoard(store)
    one.beat(0, 0, 2)
    two.beat(0, 1, 2)
    clock[0] += module.SILENCE + 1  # a third machine was long in coming
    assert two.beat(1, 1, 2) is None


def test_everyone_hears_that_the_machines_meet_again() -> None:
    store = HashStore()
    one, two = JobBoard(store), JobBoard(store)
    one.meet_again(0)
    assert two.is_to_meet_again(0)
    assert not two.is_to_meet_again(1)
