"""Actions of all workers: nobody misses the verdict because worker 0, who keeps it, has left."""

import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from fleetx.plan.all_or_none import all_or_none
from fleetx.roles import barrier
from fleetx.roles.barrier import Barrier


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
    assert store.num_keys() == 0


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
