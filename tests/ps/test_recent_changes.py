"""What a server remembers of the last changes of a table."""

import numpy as np

from fleetx.ps.server.recent_changes import RecentChanges
from fleetx.ps.wire.arrays import Ids


def ids(*numbers: int) -> Ids:
    return np.array(numbers, np.int64)


def told(recent_changes: RecentChanges, since: int, reader: int) -> tuple[int, list[int] | None]:
    last, found = recent_changes.since(since, reader)
    return last, None if found is None else sorted(int(i) for part in found for i in part)


def test_a_reader_is_told_what_others_changed_since_it_asked() -> None:
    recent_changes = RecentChanges()
    first, found = told(recent_changes, 0, 1)
    assert found is None
    recent_changes.note(ids(1, 2), by=1)
    recent_changes.note(ids(3), by=2)
    recent_changes.note(ids(4, 5), by=3)
    second, found = told(recent_changes, first, 1)
    assert found == [3, 4, 5]
    assert told(recent_changes, first, 2) == (second, [1, 2, 4, 5])
    assert told(recent_changes, second, 1) == (second, [])
    recent_changes.note(ids(3), by=2)
    assert told(recent_changes, second, 1)[1] == [3]


def test_nothing_is_kept_before_somebody_asks() -> None:
    recent_changes = RecentChanges()
    recent_changes.note(ids(1), by=1)
    start, found = told(recent_changes, 0, 2)
    assert found is None
    assert told(recent_changes, start, 2) == (start, [])


def test_ids_are_copied() -> None:
    recent_changes, given = RecentChanges(), ids(1, 2)
    start, _ = told(recent_changes, 0, 1)
    recent_changes.note(given, by=2)
    given[:] = 0
    assert told(recent_changes, start, 1)[1] == [1, 2]


def test_who_asks_too_late_is_told_that_anything_may_have_changed() -> None:
    for recent_changes in (RecentChanges(most_ids=4), RecentChanges(most_changes=2)):
        start, _ = told(recent_changes, 0, 1)
        recent_changes.note(ids(1, 2), by=2)
        later, found = told(recent_changes, start, 1)
        assert found == [1, 2]
        recent_changes.note(ids(3), by=2)
        recent_changes.note(ids(4, 5), by=2)
        assert told(recent_changes, start, 1)[1] is None
        assert told(recent_changes, later, 1)[1] == [3, 4, 5]


def test_one_change_may_be_larger_than_what_is_kept() -> None:
    recent_changes = RecentChanges(most_ids=2)
    start, _ = told(recent_changes, 0, 1)
    recent_changes.note(ids(1, 2, 3), by=2)
    last, found = told(recent_changes, start, 1)
    assert found is None
    assert told(recent_changes, last, 1) == (last, [])


def test_numbers_of_before_are_not_known_after_all_was_forgotten() -> None:
    recent_changes = RecentChanges()
    start, _ = told(recent_changes, 0, 1)
    recent_changes.note(ids(1), by=2)
    recent_changes.forget()
    again, found = told(recent_changes, start, 1)
    assert found is None
    recent_changes.note(ids(2), by=2)
    assert told(recent_changes, again, 1)[1] == [2]
