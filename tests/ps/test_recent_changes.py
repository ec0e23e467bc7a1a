"""What a server remembers of the last changes of a table."""

import numpy as np

from fleetx.ps.server.recent_changes import Recent
from fleetx.ps.wire.arrays import Ids


def ids(*numbers: int) -> Ids:
    return np.array(numbers, np.int64)


def told(recent: Recent, since: int, reader: int) -> tuple[int, list[int] | None]:
    last, found = recent.since(since, reader)
    return last, None if found is None else sorted(int(i) for part in found for i in part)


def test_a_reader_is_told_what_others_changed_since_it_asked() -> None:
    recent = Recent()
    first, found = told(recent, 0, 1)
    assert found is None
    recent.note(ids(1, 2), by=1)
    recent.note(ids(3), by=2)
    recent.note(ids(4, 5), by=3)
    second, found = told(recent, first, 1)
    assert found == [3, 4, 5]
    assert told(recent, first, 2) == (second, [1, 2, 4, 5])
    assert told(recent, second, 1) == (second, [])
    recent.note(ids(3), by=2)
    assert told(recent, second, 1)[1] == [3]


def test_nothing_is_kept_before_somebody_asks() -> None:
    recent = Recent()
    recent.note(ids(1), by=1)
    start, found = told(recent, 0, 2)
    assert found is None
    assert told(recent, start, 2) == (start, [])


def test_ids_are_copied() -> None:
    recent, given = Recent(), ids(1, 2)
    start, _ = told(recent, 0, 1)
    recent.note(given, by=2)
    given[:] = 0
    assert told(recent, start, 1)[1] == [1, 2]


def test_who_asks_too_late_is_told_that_anything_may_have_changed() -> None:
    for recent in (Recent(most_ids=4), Recent(most_changes=2)):
        start, _ = told(recent, 0, 1)
        recent.note(ids(1, 2), by=2)
        later, found = told(recent, start, 1)
        assert found == [1, 2]
        recent.note(ids(3), by=2)
        recent.note(ids(4, 5), by=2)
        assert told(recent, start, 1)[1] is None
        assert told(recent, later, 1)[1] == [3, 4, 5]


def test_one_change_may_be_larger_than_what_is_kept() -> None:
    recent = Recent(most_ids=2)
    start, _ = told(recent, 0, 1)
    recent.note(ids(1, 2, 3), by=2)
    last, found = told(recent, start, 1)
    assert found is None
    assert told(recent, last, 1) == (last, [])


def test_numbers_of_before_are_not_known_after_all_was_forgotten() -> None:
    recent = Recent()
    start, _ = told(recent, 0, 1)
    recent.note(ids(1), by=2)
    recent.forget()
    again, found = told(recent, start, 1)
    assert found is None
    recent.note(ids(2), by=2)
    assert told(recent, again, 1)[1] == [2]
