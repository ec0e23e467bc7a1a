"""Ctrl-C while geo workers exchange: what they learned is given, and given once."""

import signal
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.worker.carrier_geo import GeoCarrier
from fleetx.ps.worker.carrier_options import CarrierOptions
from fleetx.ps.worker.unbroken import unbroken
from tests.ps.team import carried, table, team, together, train
from tests.ps.test_geo import climb, geo, held
from tests.ps.test_modes import interrupted, net


@pytest.mark.parametrize("call", ["send_all", "receive"])
@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize("after", range(3))
def test_copies_whose_exchange_is_interrupted_lose_nothing(
    monkeypatch: pytest.MonkeyPatch, call: str, server: int, after: int
) -> None:
    """Differences were let go if Ctrl-C came before they were sent to all servers."""
    ids, wanted = torch.tensor([[1, 2, 3]]), torch.ones(1)
    with team(2) as here:
        model, worker = net(), here.worker()
        seldom = CarrierOptions(every=10)
        carrier = carried(model, worker, GeoCarrier, carrier_options=seldom, lr=0.1)
        train(model, carrier, ids, wanted)
        head = model.head.weight.detach().clone()
        rows = model.words(ids).detach().clone()
        channel, calls = worker.client.channels[server], count()
        real: Any = getattr(channel, call)

        def broken(*given: Any) -> Any:
            return interrupted() if next(calls) == after else real(*given)

        with monkeypatch.context() as patch:
            patch.setattr(channel, call, broken)
            with pytest.raises(KeyboardInterrupt):
                carrier.flush()
        carrier.flush()
        carrier.catch_up()
        torch.testing.assert_close(model.head.weight, head)
        torch.testing.assert_close(model.words(ids), rows)
        worker.stop(finished=False)


def test_news_that_were_interrupted_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers had told of them, and did not again: the copy stayed as it was."""
    with team(2, workers=2) as here:
        workers = [here.worker(index) for index in range(2)]
        (one, ones), (other, others) = together(*(partial(geo, worker) for worker in workers))
        climb(one, ones, 5, by=4)
        climb(other, others, 5, by=8)
        copies = ones._copies["words"]
        real: Any = copies._mark_stale
        calls = count()

        def broken(slots: Any) -> Any:
            return real(slots) if next(calls) else interrupted()

        with monkeypatch.context() as patch:
            patch.setattr(copies, "_mark_stale", broken)
            with pytest.raises(KeyboardInterrupt):
                ones.flush()
        assert held(one, 5) == [4 + 4]  # half of what the other one learned is given
        for worker in workers:
            worker.stop(finished=False)


def test_a_change_that_is_refused_is_not_sent_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("no room")

    with team() as here:
        client = here.client()
        handle = table(client, SparseSpec(name="t", dim=2))
        (logged,) = here.handlers[0]._tables
        batch = IdBatch.of(np.array([1]), 1)
        with monkeypatch.context() as patch:
            patch.setattr(logged, "change", refuse)
            client.owe(client.pushing(handle, batch, np.ones((1, 2), np.float32)))
            with pytest.raises(ValueError, match="no room"):
                client.call({"method": "heartbeat"})
            client.call({"method": "heartbeat"})


@pytest.fixture
def _heard() -> Iterator[None]:
    """Ctrl-C as in a terminal, also where this process was started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heard")
def test_ctrl_c_is_heard_after_a_step_that_it_must_not_break() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), unbroken():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
