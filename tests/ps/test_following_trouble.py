"""Copies that get no newer say so, and why, and go on when they can."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fleetx.nn import Follower
from fleetx.ps.observers.relay import Relay
from fleetx.ps.observers.server_copy import ServerCopy
from fleetx.ps.tables.row_source import RowSource, TableOptions
from fleetx.testing.limits import stretched
from tests.ps.team import Team, push, table, team
from tests.ps.test_following import SOON, SPEC, copied, settled, token

__all__ = ["token"]


@pytest.fixture
def here() -> Iterator[Team]:
    with team() as made:
        client = made.client()
        push(client, table(client, SPEC), [1], np.full((1, 3), -1.0))
        yield made


def fault(number: int, brief: Any) -> None:
    """What nobody expects."""
    raise KeyError("nothing")


def in_trouble(copy: ServerCopy) -> None:
    """Wait until it says that it is."""
    with copy._news:
        assert copy._news.wait_for(lambda: copy.trouble, stretched(60))


def test_a_fault_of_the_program_is_told_and_visits_go_on(
    here: Team, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ended, and rows got older and older."""
    with Follower(here.endpoints, every=SOON) as follower:
        settled(follower)
        (copy,) = follower.copies
        with monkeypatch.context() as broken:
            broken.setattr(copy, "_visit_rows", fault)
            in_trouble(copy)
            assert "KeyError: 'nothing'" in follower.trouble
            assert here.endpoints[0] in follower.trouble
            at = copy.visited
            client = here.client()
            push(client, table(client, SPEC), [1], np.full((1, 3), -1.0))
            with pytest.raises(TimeoutError, match="KeyError"):
                follower.refresh(SOON * 5)
            assert copy.visited == at
            assert copied(follower, [1]) == [1.0]
        settled(follower)
        assert copied(follower, [1]) == [2.0]
        assert follower.trouble == ""
    (told,) = [each for each in caplog.records if "cannot be followed" in each.message]
    assert told.exc_info is not None


def test_a_table_that_the_next_job_does_not_have_gets_older(here: Team) -> None:
    """Its rows passed for those of the last visit."""
    with Follower(here.endpoints, every=SOON) as follower:
        settled(follower)
        (copy,) = follower.copies
        held = [*here.handlers[0]._tables]
        here.handlers[0]._tables.clear()
        in_trouble(copy)
        assert "holds no table 't' any more" in follower.trouble
        assert copied(follower, [1]) == [1.0]
        at = copy.visited
        with pytest.raises(TimeoutError, match="no table 't'"):
            follower.refresh(SOON * 5)
        assert copy.visited == at
        here.handlers[0]._tables.extend(held)
        settled(follower)
        assert follower.trouble == ""


def test_another_table_of_the_same_number_is_not_taken_for_it(
    here: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a server is exchanged between two requests."""
    (logged,) = here.handlers[0]._tables
    monkeypatch.setattr(logged, "brief", lambda: {"name": "u", "kind": "sparse", "rows": 1})
    with Follower(here.endpoints, every=SOON) as follower:
        in_trouble(follower.copies[0])
        assert "'t' in the place of 'u'" in follower.trouble
        assert follower.copies[0].rows("u") is None
        assert follower.age == math.inf


def test_who_follows_a_copy_is_told_how_old_that_is(
    here: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a copy of a copy had was as old as its own last visit, however old the copy was."""
    with Follower(here.endpoints, every=SOON) as near:
        settled(near)
        (copy,) = near.copies
        with Relay(near, "127.0.0.1", 0) as relay, monkeypatch.context() as broken:
            broken.setattr(copy, "_visit_rows", fault)
            in_trouble(copy)
            with Follower(relay.endpoints, every=SOON) as far:
                settled(far)
                assert copied(far, [1]) == [1.0]
                assert "a copy that is no newer: KeyError" in far.trouble
                assert copy.visited is not None
                copy.visited -= 10_000.0
                settled(far)
                assert far.age > 10_000.0
            copy.visited = None
            with Follower(relay.endpoints, every=SOON) as far:
                in_trouble(far.copies[0])
                assert "not complete yet" in far.trouble


def test_rows_of_a_save_that_nobody_trains_are_told(
    here: Team, caplog: pytest.LogCaptureFixture
) -> None:
    class Base:
        def look_up(self, *_: Any, **__: Any) -> Any:
            return np.zeros((1, 3), np.float32)

    base: Any = Base()
    with Follower(here.endpoints, every=SOON) as follower:
        settled(follower)
        kept: RowSource = base
        follower.base = kept
        for _ in range(2):
            batch = follower.sort_ids(np.array([1]))
            follower.look_up(TableOptions(name="u", dim=3), batch, None, train=False)
    assert caplog.text.count("hold no table u") == 1


def test_a_fork_of_a_process_that_follows_is_refused(here: Team) -> None:
    with Follower(here.endpoints, every=SOON) as follower:
        settled(follower)
        follower._process += 1
        with pytest.raises(RuntimeError, match="forked from the one that follows"):
            copied(follower, [1])
