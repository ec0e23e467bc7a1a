"""When replicas meet."""

from fleetx.strategies.localsgd.sync_schedule import SyncSchedule


def test_meetings_after_each_update_first_and_later_by_the_interval() -> None:
    meetings = SyncSchedule(begin=2)
    met = [meetings.after_update(3) for _ in range(9)]
    assert met == [True, True, False, False, True, False, False, True, False]


def test_the_interval_may_change_on_the_way() -> None:
    meetings = SyncSchedule(begin=1)
    assert [meetings.after_update(k) for k in (5, 5, 5, 2, 1)] == [True, False, False, True, True]


def test_counters_continue_elsewhere() -> None:
    first = SyncSchedule(begin=1)
    for _ in range(3):
        first.after_update(4)
    second = SyncSchedule(begin=1)
    second.load_state_dict(first.state_dict())
    assert not second.just_met
    assert [second.after_update(4) for _ in range(3)] == [False, True, False]
