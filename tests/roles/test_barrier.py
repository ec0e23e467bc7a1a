"""Actions of all workers: nobody misses the verdict because worker 0, who keeps it, has left."""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

import fleetx as fleet
from fleetx.plan.all_or_none import all_or_none
from fleetx.roles import barrier, session
from fleetx.roles.barrier import Barrier
from fleetx.roles.stores import host_store, is_served, visit_store
from fleetx.testing import world


class Slow:
    """A store whose reader waits until it may read."""

    def __init__(self, store: HashStore) -> None:
        self._store, self.asked, self.may_read = store, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        self.asked.set()
        assert self.may_read.wait(60)
        return self._store.get(key)


def in_thread(action: Any) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("trouble", ["", "it broke"])
def test_worker_0_stays_until_all_have_read_the_verdict(trouble: str) -> None:
    store, heard = HashStore(), list[str]()
    slow = Slow(store)
    first, second = Barrier(store, 0, 2), Barrier(slow, 1, 2)
    keeper = in_thread(first.trouble if not trouble else lambda: first.report(trouble))
    reader = in_thread(lambda: heard.append(second.trouble()))
    assert slow.asked.wait(60)
    keeper.join(0.2)
    assert keeper.is_alive()
    slow.may_read.set()
    keeper.join(60)
    reader.join(60)
    assert not keeper.is_alive()
    assert heard == [f"worker 0: {trouble}" if trouble else ""]


def test_worker_0_does_not_stay_for_ever_with_a_worker_that_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(barrier, "GRACE", timedelta(seconds=0.1))
    Barrier(HashStore(), 0, 2).report("it broke")


def test_worker_0_stays_until_all_have_read_what_it_said_last() -> None:
    store, heard = HashStore(), list[str]()
    slow = Slow(store)
    first, second = Barrier(store, 0, 2), Barrier(slow, 1, 2)
    assert first.from_first("a call", "topic", "a fact") == "a fact", "it waits for nobody"
    reader = in_thread(lambda: heard.append(second.from_first("a call", "topic", "")))
    assert slow.asked.wait(60)
    keeper = in_thread(first.close)
    keeper.join(0.2)
    assert keeper.is_alive()
    slow.may_read.set()
    keeper.join(60)
    reader.join(60)
    assert not keeper.is_alive()
    assert heard == ["a fact"]
    first.drop("topic")
    silent = HashStore()
    Barrier(silent, 0, 2).close()
    assert store.num_keys() == silent.num_keys(), "nothing is left of what was said"


def test_worker_0_leaves_when_nobody_reads_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Barrier(HashStore(), 0, 1)
    alone.from_first("a call", "topic", "a fact")
    alone.close()
    monkeypatch.setattr(barrier, "GRACE", timedelta(seconds=0.1))
    left = Barrier(HashStore(), 0, 2)
    left.from_first("a call", "topic", "a fact")
    left.close()


def test_actions_leave_nothing_in_the_store() -> None:
    store = HashStore()
    workers = [Barrier(store, index, 2) for index in range(2)]
    for _ in range(3):
        threads = [in_thread(worker.trouble) for worker in workers]
        for thread in threads:
            thread.join(60)
    assert store.num_keys() <= 1  # the last verdict


def test_what_went_wrong_is_told_although_worker_0_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        size = 2

        def report(self, trouble: str) -> None:
            raise dist.DistNetworkError("Connection was likely closed")

    def fail() -> None:
        raise ZeroDivisionError("of the user")

    monkeypatch.setattr("fleetx.plan.all_or_none.started", lambda: True)
    monkeypatch.setattr("fleetx.plan.all_or_none.world", lambda _: SimpleNamespace(barrier=Gone()))
    with pytest.raises(ZeroDivisionError, match="of the user"):
        all_or_none(fail)


def all_well(waiting: Barrier) -> None:
    if trouble := waiting.trouble():
        raise RuntimeError(trouble)


@pytest.mark.parametrize("ended", [0, 1])
@pytest.mark.parametrize(
    "wait",
    [
        lambda waiting: waiting.tell("a call", "a fact"),
        lambda waiting: waiting.await_all("a call"),
        all_well,
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_who_waits_for_a_worker_whose_script_ends_hears_of_it(
    ended: int, wait: Callable[[Barrier], object], *, before: bool
) -> None:
    """It waited for half an hour for what a worker says, and five minutes at a barrier."""
    store, heard = HashStore(), list[str]()
    workers = [Barrier(store, index, 2) for index in range(2)]
    leaving, waiting = workers[ended], workers[1 - ended]

    def waits() -> None:
        try:
            wait(waiting)
        except RuntimeError as error:
            heard.append(str(error))

    if before:
        leaving.close()
    thread = in_thread(waits)
    if not before:
        leaving.close()
    thread.join(60)
    assert not thread.is_alive()
    (sentence,) = heard
    assert "its script has ended, or was interrupted, before that" in sentence
    assert str(ended) in sentence


def test_who_waits_hears_that_worker_0_took_the_store_along() -> None:
    class Gone:
        def set(self, *_: Any) -> None:
            raise dist.DistNetworkError("Connection was likely closed")

        check = set

    with pytest.raises(RuntimeError, match=r"a call lost worker 0.*look at its log"):
        Barrier(Gone(), 1, 2).tell("a call", "a fact")  # type: ignore[arg-type]


def ends(early: int) -> str:
    """A script on three workers, one of which comes to its end before the others."""
    fleet.init(is_collective=True)
    if fleet.worker_index() == early:
        session.stop()  # as at the end of its process
        return ""
    with pytest.raises(RuntimeError) as caught:
        fleet.barrier_worker()
    return str(caught.value)


def test_workers_of_a_job_hear_that_another_ended() -> None:
    first, early, last = world(3).run(ends, 1)
    assert early == ""
    assert first == last
    assert "fleet.barrier_worker() was not reached by: 1, because its script has ended" in first


def test_who_ends_after_worker_0_does_so_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    """torch printed a page of frames for a word that nobody can read any more."""
    kept, endpoint = host_store("127.0.0.1", timedelta(seconds=60))
    visitor = visit_store(endpoint, timedelta(seconds=60))
    visitor.set("a key", "a word")
    assert is_served(visitor)
    del kept
    assert not is_served(visitor)
    Barrier(visitor, 1, 2).close()
    assert capfd.readouterr().err == ""


def test_a_worker_may_end_before_others_have_left_a_meeting() -> None:
    """What it says at its end is no answer to the meeting before."""
    store = HashStore()
    slow = Slow(store)
    first, second = Barrier(slow, 0, 2), Barrier(store, 1, 2)
    keeper = in_thread(lambda: first.await_all("a call"))
    second.await_all("a call")
    assert slow.asked.wait(60)  # the first one is inside, and has not left
    second.close()
    slow.may_read.set()
    keeper.join(60)
    assert not keeper.is_alive()


def test_worker_0_does_not_wait_for_those_that_never_come_to_what_one_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(barrier, "GRACE", timedelta(seconds=0.1))
    store = HashStore()
    Barrier(store, 1, 3).close()
    with pytest.raises(RuntimeError, match="a call was not reached by: 1, because its script"):
        Barrier(store, 0, 3).await_all("a call")


def test_followers_hear_that_worker_0_ended() -> None:
    store = HashStore()
    Barrier(store, 0, 2).close()
    assert Barrier(store, 1, 2).follow("a call", 1).startswith("worker 0: its script has ended")


def test_whoever_asked_alone_may_ask_with_the_others_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = HashStore()
    workers = [Barrier(store, index, 2) for index in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(barrier, "patience", lambda: timedelta(seconds=0.1))
        with pytest.raises(RuntimeError, match="was asked for by worker 0, and not by all"):
            workers[0].await_some("a number", [0, 1])
    asking = in_thread(lambda: workers[1].await_some("a number", [0, 1]))
    asking.join(0.2)
    assert asking.is_alive()
    workers[0].await_some("a number", [0, 1])
    asking.join(60)
    assert not asking.is_alive()


def test_workers_that_meet_for_different_things_hear_so() -> None:
    store = HashStore()
    workers = [Barrier(store, index, 3) for index in range(3)]
    heard: list[str] = []

    def ask(index: int, fact: str) -> None:
        try:
            workers[index].await_some("a number", [0, 1, 2], fact)
        except RuntimeError as error:
            heard.append(str(error))

    for facts in (("of p", "of q", "of p"), ("of p", "of p", "of p")):
        heard.clear()
        asking = [in_thread(partial(ask, index, fact)) for index, fact in enumerate(facts)]
        for each in asking:
            each.join(60)
            assert not each.is_alive()
        assert len(heard) == (3 if len(set(facts)) > 1 else 0)
        assert all("ask for different things at the same time" in said for said in heard)


def test_meetings_of_some_leave_two_words_in_the_store() -> None:
    store = HashStore()
    alone = Barrier(store, 0, 1)
    for _ in range(5):
        alone.await_some("a number", [0], "of p")
    assert store.num_keys() == 2
