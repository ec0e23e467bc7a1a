"""A worker's own copies of rows: what is asked for, what is trained, what is given away."""

import mmap
import threading
import time
from typing import Any

import numpy as np
import pytest

from fleetx.ps.tables import arena, kernels
from fleetx.ps.tables.hashing import servers_of
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.kernels import numba_kernels, numpy_kernels
from fleetx.ps.tables.rules import SGD, Adagrad
from fleetx.ps.wire.frames import Flag
from fleetx.ps.wire.short_floats import rounded
from fleetx.ps.worker.row_copies import RECENT_EXCHANGES, RowCopies

SERVERS = 3


@pytest.fixture(params=[numpy_kernels, numba_kernels], ids=["numpy", "numba"], autouse=True)
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "active", request.param)


class Source:
    """Servers whose row of an id begins with the id; remembers what it was asked and told."""

    def __init__(self) -> None:
        self.rows: dict[int, float] = {}
        self.asked: list[list[int]] = []
        self.pushed: list[dict[int, float]] = []
        self.sightings: list[dict[int, int]] = []
        self.others: set[int] | None = set()
        """Rows that others have changed since the last exchange; None if nobody knows."""

    def pull(self, batch: IdBatch, sightings: Any) -> Any:
        ids = batch.ids.tolist()
        self.asked.append(sorted(ids))
        if sightings is not None:
            self.sightings.append(dict(zip(ids, sightings.tolist(), strict=True)))
        check_order(batch)
        return np.repeat(np.array([[self.row(i)] for i in ids], np.float32), 2, 1)

    def row(self, number: int) -> float:
        return self.rows.get(number, number)

    def push(self, batch: IdBatch, delta: Any) -> None:
        check_order(batch)
        self.pushed.append(dict(zip(batch.ids.tolist(), delta[:, 0].tolist(), strict=True)))
        for number, change in self.pushed[-1].items():
            self.rows[number] = self.row(number) + change

    def changed_ids(self) -> IdBatch | None:
        found, self.others = self.others, set()
        return None if found is None else batch_of(*found)

    def elsewhere(self, **rows: float) -> None:
        """Other workers change rows."""
        assert self.others is not None
        for name, change in rows.items():
            number = int(name.removeprefix("row"))
            self.rows[number] = self.row(number) + change
            self.others.add(number)


def batch_of(*ids: int) -> IdBatch:
    return IdBatch.of(np.array(ids, np.int64), SERVERS)


def check_order(batch: IdBatch) -> None:
    """Ids lie between the marks of their servers."""
    owners = servers_of(batch.ids, SERVERS)
    assert (batch.begins[0], batch.begins[-1]) == (0, len(batch.ids))
    for server in range(SERVERS):
        assert (owners[batch.begins[server] : batch.begins[server + 1]] == server).all()


def rows(copies: RowCopies, source: Source, *ids: int) -> dict[int, float]:
    batch = batch_of(*ids)
    found = copies.look_up(batch, source.pull)
    assert (found[:, 0] == found[:, 1]).all()
    return dict(zip(batch.ids.tolist(), found[:, 0].tolist(), strict=True))


def step(copies: RowCopies, source: Source, *ids: int, by: float = 1.0) -> None:
    """Train rows, so that each moves by so much."""
    rows(copies, source, *ids)
    batch = batch_of(*ids)
    copies.train(batch, np.full((len(batch.ids), 2), -by, np.float32), 1.0)


def test_a_row_is_asked_for_once_unless_others_change_it() -> None:
    copies, source = RowCopies(2, SGD(), SERVERS), Source()
    many = range(-3000, 3000)
    assert rows(copies, source, *many) == {number: number for number in many}
    assert rows(copies, source, 5, 2999, 3000) == {5: 5, 2999: 2999, 3000: 3000}
    assert source.asked == [list(many), [3000]]
    source.elsewhere(row6=0.5)
    copies.exchange(source, 1.0)
    assert rows(copies, source, 5, 6, 7) == {5: 5, 6: 6.5, 7: 7}
    assert source.asked[2:] == [[6]]


def test_rows_that_were_trained_lately_are_brought_up_to_date_at_once() -> None:
    copies, source = RowCopies(2, SGD(), SERVERS), Source()
    step(copies, source, 1, 2)
    rows(copies, source, 3)
    source.elsewhere(row1=10, row3=10, row4=10)  # 3 was not trained here, and 4 is not known
    copies.exchange(source, 1.0)
    assert source.asked == [[1, 2], [3], [1]]
    assert rows(copies, source, 1, 2, 3) == {1: 12, 2: 3, 3: 13}
    assert source.asked[3:] == [[3]]
    for _ in range(RECENT_EXCHANGES):
        copies.exchange(source, 1.0)
    source.elsewhere(row2=10)
    copies.exchange(source, 1.0)
    assert source.asked[4:] == []
    assert rows(copies, source, 2) == {2: 13}


def test_what_is_not_given_yet_stays_in_the_copy_and_is_given_little_by_little() -> None:
    copies, source = RowCopies(2, SGD(), SERVERS), Source()
    step(copies, source, 8, by=4)
    copies.exchange(source, 0.5)
    assert (source.row(8), rows(copies, source, 8)) == (10, {8: 12})
    source.elsewhere(row8=100)
    step(copies, source, 8, by=0)
    copies.exchange(source, 0.5)
    assert (source.row(8), rows(copies, source, 8)) == (111, {8: 112})
    assert source.pushed == [{8: 2}, {8: 1}]


def test_only_rows_that_were_trained_are_given() -> None:
    copies, source = RowCopies(2, SGD(), SERVERS), Source()
    rows(copies, source, *range(50))
    rows(copies, source, *range(40, 90))
    for part in (range(30, 60), range(50, 70)):
        copies.train(batch_of(*part), np.ones((len(part), 2), np.float32), 0.5)
    copies.exchange(source, 0.5)
    expected = {number: -0.5 if 50 <= number < 60 else -0.25 for number in range(30, 70)}
    assert source.pushed == [expected]
    copies.exchange(source, 0.5)
    assert source.pushed[1:] == [{}]


def test_all_rows_are_asked_for_when_nobody_knows_what_changed() -> None:
    copies, source = RowCopies(2, SGD(), SERVERS), Source()
    step(copies, source, 1, 2, by=4)
    source.elsewhere(row1=10)
    source.others = None  # as of a server that was started again
    copies.exchange(source, 0.5)
    assert source.asked == [[1, 2]]
    assert rows(copies, source, 1, 2) == {1: 15, 2: 6}
    assert source.asked[1:] == [[1, 2]]


def test_the_rule_goes_on_with_its_state_after_an_exchange() -> None:
    copies, source = RowCopies(2, Adagrad(lr=1.0), SERVERS), Source()
    for total in (1.0, 2.0, 3.0):
        rows(copies, source, 7)
        copies.train(batch_of(7), np.ones((1, 2), np.float32), -1.0)
        source.others = {7}
        copies.exchange(source, 1.0)
        assert source.pushed[-1][7] == pytest.approx(-(total**-0.5), rel=1e-5)


@pytest.mark.parametrize("short", [Flag.FLOAT16, Flag.BFLOAT16])
def test_what_a_short_form_rounds_away_is_given_later(short: int) -> None:
    copies, source = RowCopies(2, SGD(), SERVERS, short=short), Source()
    step(copies, source, 1, by=0.1001)
    first = float(rounded(np.array([[0.1001]], np.float32), short)[0, 0])
    copies.exchange(source, 1.0)
    assert first != pytest.approx(0.1001, abs=1e-6)
    assert source.pushed[-1][1] == pytest.approx(first, abs=1e-6)
    step(copies, source, 1, by=0.0)
    copies.exchange(source, 1.0)
    assert source.row(1) == pytest.approx(1.1001, abs=1e-6)


def test_two_threads_ask_for_a_row_once_and_keep_what_was_learned() -> None:
    copies, source = RowCopies(2, SGD(), SERVERS), Source()
    arrived, go_on = threading.Event(), threading.Event()

    def slowly(batch: IdBatch, sightings: Any) -> Any:
        arrived.set()
        assert go_on.wait(30)
        return source.pull(batch, sightings)

    ahead = threading.Thread(target=copies.look_up, args=(batch_of(1, 2, 3), slowly))
    ahead.start()
    assert arrived.wait(30)
    other = threading.Thread(target=step, args=(copies, source, 1, 2, 4))
    other.start()
    go_on.set()
    for thread in (ahead, other):
        thread.join(30)
    assert source.asked == [[1, 2, 3], [4]]
    assert rows(copies, source, 1, 2, 3, 4) == {1: 2, 2: 3, 3: 3, 4: 5}


def test_servers_are_told_of_every_sighting_once() -> None:
    copies, source = RowCopies(2, SGD(), SERVERS, counting=True), Source()
    batch = batch_of(1, 2)
    times = np.where(batch.ids == 1, 3, 4)
    for _ in range(5):
        copies.look_up(batch, source.pull, times)
    copies.exchange(source, 1.0)
    rows(copies, source, 2, 3)  # rows that were fetched ahead, and counted then
    copies.look_up(batch, source.pull, times)
    assert source.sightings == [{1: 3, 2: 4}, {2: 16, 3: 0}, {1: 15}]


def test_a_row_that_servers_do_not_let_in_is_not_learned() -> None:
    copies, source = RowCopies(2, SGD(), SERVERS, counting=True), Source()
    step(copies, source, 1, by=4)
    copies.exchange(source, 0.5)
    source.rows[1] = 0.0  # whatever was pushed
    assert rows(copies, source, 1) == {1: 0}


def test_rows_are_asked_for_anew_when_copies_are_forgotten() -> None:
    copies, source = RowCopies(2, SGD(), SERVERS), Source()
    step(copies, source, 1, 2)
    copies.forget()
    assert rows(copies, source, 1, 2) == {1: 1, 2: 2}
    assert source.asked == [[1, 2], [1, 2]]
    copies.exchange(source, 1.0)
    assert source.pushed == [{}]


def test_rows_may_be_added_while_others_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory moves then."""
    monkeypatch.setattr(arena, "GRANULE", mmap.PAGESIZE)
    copies, source = RowCopies(2, SGD(), SERVERS), Source()
    step(copies, source, 1)
    source.elsewhere(row1=10)
    pull, many = source.pull, batch_of(*range(2, 20_000))
    late = threading.Thread(target=copies.look_up, args=(many, pull))

    def beside(batch: IdBatch, sightings: Any) -> Any:
        late.start()
        until = time.monotonic() + 30
        while copies._index.size < len(many.ids):
            assert late.is_alive(), "its failure is in the log of this test"
            assert time.monotonic() < until
            time.sleep(0.01)
        return pull(batch, sightings)

    monkeypatch.setattr(source, "pull", beside)
    copies.exchange(source, 1.0)
    late.join(30)
    monkeypatch.setattr(source, "pull", pull)
    assert rows(copies, source, 1, 19_999) == {1: 12, 19_999: 19_999}
    assert source.asked[1:] == [[1], [*range(2, 20_000)]]
