"""A worker's own copies of rows: what is asked for, what is trained, what is given back."""

from typing import Any

import numpy as np
import pytest

from fleetx.ps.client import Batch
from fleetx.ps.copies import Copies
from fleetx.ps.hashing import servers_of
from fleetx.ps.rules import SGD, Adagrad

SERVERS = 3


class Source:
    """Servers whose row of an id is the id; remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.sightings: list[dict[int, int]] = []
        self.meanwhile: Any = None

    def pull(self, batch: Batch, sightings: Any) -> Any:
        self.asked.append(sorted(batch.ids.tolist()))
        if sightings is not None:
            self.sightings.append(dict(zip(batch.ids.tolist(), sightings.tolist(), strict=True)))
        check_order(batch)
        if self.meanwhile is not None:
            then, self.meanwhile = self.meanwhile, None
            then()
        return np.repeat(batch.ids.astype(np.float32)[:, None], 2, 1)


def batch_of(*ids: int) -> Batch:
    return Batch.of(np.array(ids, np.int64), SERVERS)


def check_order(batch: Batch) -> None:
    """Ids lie between the marks of their servers."""
    owners = servers_of(batch.ids, SERVERS)
    assert (batch.begins[0], batch.begins[-1]) == (0, len(batch.ids))
    for server in range(SERVERS):
        assert (owners[batch.begins[server] : batch.begins[server + 1]] == server).all()


def rows(copies: Copies, source: Source, *ids: int) -> dict[int, float]:
    batch = batch_of(*ids)
    found = copies.look_up(batch, source.pull)
    assert (found[:, 0] == found[:, 1]).all()
    return dict(zip(batch.ids.tolist(), found[:, 0].tolist(), strict=True))


def test_a_row_is_asked_for_once_between_two_exchanges() -> None:
    copies, source = Copies(2, SGD(), SERVERS), Source()
    many = range(-3000, 3000)
    assert rows(copies, source, *many) == {number: number for number in many}
    assert rows(copies, source, 5, 2999, 3000) == {5: 5, 2999: 2999, 3000: 3000}
    assert source.asked == [list(many), [3000]]
    copies.changes(1.0)
    assert rows(copies, source, 5, 6) == {5: 5, 6: 6}
    assert source.asked[2:] == [[5, 6]]


def test_changes_are_those_of_rows_that_were_asked_for() -> None:
    copies, source = Copies(2, SGD(), SERVERS), Source()
    rows(copies, source, *range(50))
    rows(copies, source, *range(40, 90))
    moved = batch_of(*range(30, 60))
    copies.train(moved, np.ones((30, 2), np.float32), 0.5)
    batch, delta = copies.changes(0.5)
    check_order(batch)
    expected = {number: -0.25 if 30 <= number < 60 else 0.0 for number in range(90)}
    assert dict(zip(batch.ids.tolist(), delta[:, 0].tolist(), strict=True)) == expected
    batch, delta = copies.changes(0.5)
    assert len(batch.ids) == len(delta) == 0


def test_the_rule_goes_on_with_its_state_after_an_exchange() -> None:
    copies, source = Copies(2, Adagrad(lr=1.0), SERVERS), Source()
    for total in (1.0, 2.0, 3.0):
        assert rows(copies, source, 7) == {7: 7}
        copies.train(batch_of(7), np.ones((1, 2), np.float32), -1.0)
        _, delta = copies.changes(1.0)
        assert delta[0, 0] == pytest.approx(-(total**-0.5), rel=1e-5)


def test_rows_that_come_late_do_not_undo_what_was_learned() -> None:
    copies, source = Copies(2, SGD(), SERVERS), Source()

    def other_batch() -> None:
        rows(copies, source, 1, 2)
        copies.train(batch_of(1), np.full((1, 2), 4, np.float32), 1.0)

    source.meanwhile = other_batch
    assert rows(copies, source, 1, 2, 3) == {1: -3, 2: 2, 3: 3}
    batch, delta = copies.changes(1.0)
    check_order(batch)
    changed = dict(zip(batch.ids.tolist(), delta[:, 0].tolist(), strict=True))
    assert changed == {1: -4, 2: 0, 3: 0}


def test_servers_are_told_of_every_sighting_once() -> None:
    copies, source = Copies(2, SGD(), SERVERS, counting=True), Source()
    batch = batch_of(1, 2)
    times = np.where(batch.ids == 1, 3, 4)
    for _ in range(5):
        copies.look_up(batch, source.pull, times)
    copies.changes(1.0)
    rows(copies, source, 2, 3)  # rows that were fetched ahead, and counted then
    copies.look_up(batch, source.pull, times)
    assert source.sightings == [{1: 3, 2: 4}, {2: 16, 3: 0}, {1: 15}]


def test_rows_are_asked_for_anew_when_copies_are_forgotten() -> None:
    copies, source = Copies(2, SGD(), SERVERS), Source()
    rows(copies, source, 1, 2)
    copies.train(batch_of(1), np.ones((1, 2), np.float32), 1.0)
    copies.forget()
    assert rows(copies, source, 1, 2) == {1: 1, 2: 2}
    assert source.asked == [[1, 2], [1, 2]]
    _, delta = copies.changes(1.0)
    assert (delta == 0).all()
