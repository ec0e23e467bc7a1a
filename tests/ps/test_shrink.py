"""The end of a day: what it drops, and that it goes through a table in parts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fleetx as fleet
from fleetx.ps.server import logged_sparse_table
from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables.entries import CountFilterEntry, ShowClickEntry
from fleetx.ps.tables.rules import Adagrad
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim

ME = Claim(0, 7)
OLD, NEW = np.arange(0, 600), np.arange(600, 1000)
COUNTED = ShowClickEntry(decay=0.5, lowest=0.08)
PARTS = 16


class Died(BaseException):
    """A server ends here without a word."""


class Server:
    """One server with one table, asked without a socket."""

    def __init__(self, folder: Path | None, entry: Any = None) -> None:
        self.handler = RequestHandler(Membership(1), folder=folder, patience=60)
        spec = SparseSpec(name="t", dim=2, rule=Adagrad(), entry=entry).to_plain()
        self.handler.call(ME, {"method": "create", "kind": "sparse", "spec": spec})

    @property
    def logged(self) -> LoggedSparseTable:
        return self.handler.sparse(Frame(Op.PUSH, 0))

    def push(self, ids: Any, seq: int) -> None:
        body = memoryview(ids.tobytes() + np.ones((len(ids), 2), np.float32).tobytes())
        frame = Frame(Op.PUSH, 0, Flag.UNIQUE, seq, len(ids), 2, 0, -1.0, len(body))
        self.logged.change(ME, frame, body)

    def shrink(self, threshold: Any, **said: Any) -> int:
        message = {"method": "shrink", "threshold": threshold, "table": None}
        return int(self.handler.call(ME, message | said)["removed"])

    def held(self) -> dict[int, tuple[float, ...]]:
        found = self.logged.table.part(0, 0)
        both = np.concatenate([found.weights, found.state, found.stats, found.days[:, None]], 1)
        return dict(zip(found.ids.tolist(), map(tuple, both.tolist()), strict=True))


def filled(folder: Path | None, entry: Any = None) -> Server:
    """Rows of two days; the second one is about to end."""
    server = Server(folder, entry)
    server.push(np.concatenate([OLD, NEW]), 1)
    server.push(np.concatenate([OLD, NEW]), 2)
    assert server.shrink(9, call=1) == 0
    server.push(NEW, 3)
    return server


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], None]:
    """Lets something happen after each part, which are small; it is told how many there were."""
    monkeypatch.setattr(logged_sparse_table, "PART_ROWS", 1000 // PARTS)

    def set_up(happen: Callable[[int], None]) -> None:
        numbers = iter(range(1, 1000))
        monkeypatch.setattr(logged_sparse_table, "pause", lambda: happen(next(numbers)))

    return set_up


@pytest.mark.parametrize("threshold", [0, -3, True, 2.0, "30"])
def test_what_is_no_number_of_days_is_refused_and_drops_nothing(threshold: Any) -> None:
    server = filled(None)
    with pytest.raises(ValueError, match=r"shrink\(.*pass a whole number from 1"):
        server.shrink(threshold)
    assert (len(server.held()), server.logged.table.day) == (1000, 1)
    with pytest.raises(ValueError, match="pass a whole number from 1"):
        fleet.shrink(threshold)


def test_days_without_a_row_are_counted_and_not_the_one_on_which_it_was_met() -> None:
    server = filled(None)
    assert server.shrink(2) == 0, "one day has ended without the old ones"
    assert server.shrink(2) == len(OLD)
    assert server.shrink(2) == len(NEW)
    server.push(NEW, 4)
    assert server.shrink(1) == 0, "met today"
    assert server.shrink(1) == len(NEW)


@pytest.mark.parametrize("entry", [None, COUNTED], ids=["plain", "counted"])
def test_others_push_between_the_parts_and_what_they_meet_stays(
    between: Any, tmp_path: Path, entry: Any
) -> None:
    server = filled(tmp_path, entry)
    parts: list[int] = []

    def push(number: int) -> None:
        parts.append(number)
        server.push(OLD[:50] if number == 1 else NEW[:1], 10 + number)

    between(push)
    gone = server.shrink(1)
    assert len(parts) >= PARTS
    held = server.held()
    assert not set(OLD[50:].tolist()) & set(held)
    assert len(held) == len(server.logged.table)
    stayed = [i for i in OLD[:50].tolist() if i in held and held[i][2] > 1.5]
    assert stayed, "those of later parts, which have been trained before"
    assert gone == len(OLD) - len(stayed), "those of the first part came back as new ones"
    assert set(NEW.tolist()) <= set(held)
    assert Server(tmp_path, entry).held() == held


@pytest.mark.parametrize("saves", [False, True], ids=["log", "save"])
@pytest.mark.parametrize("entry", [None, COUNTED], ids=["plain", "counted"])
def test_a_server_that_dies_between_two_parts_ends_the_day_once(
    between: Any, tmp_path: Path, entry: Any, saves: bool
) -> None:
    between(lambda number: None)
    undisturbed = filled(None, entry)
    gone = undisturbed.shrink(1, call=2)
    for last in (1, PARTS // 2, PARTS - 1):
        folder = tmp_path / str(last)
        server = filled(folder, entry)

        def die(number: int, server: Server = server, last: int = last) -> None:
            if number == last:
                if saves:
                    server.handler.checkpoint(force=True)
                raise Died

        between(die)
        with pytest.raises(Died):
            server.shrink(1, call=2)
        between(lambda number: None)
        for _ in range(2):
            back = Server(folder, entry)
            assert back.held() == undisturbed.held()
            assert back.logged.table.day == 2
            assert back.shrink(1, call=2) == gone, "a repeated call is told what went"
        back.handler.checkpoint(force=True)
        assert Server(folder, entry).held() == undisturbed.held()


def test_a_save_between_two_parts_and_a_death_behind_it(between: Any, tmp_path: Path) -> None:
    between(lambda number: None)
    undisturbed = filled(None, COUNTED)
    undisturbed.shrink(1)
    server = filled(tmp_path, COUNTED)
    between(lambda number: server.handler.checkpoint(force=True) if number == 5 else None)
    server.shrink(1)
    assert Server(tmp_path, COUNTED).held() == server.held() == undisturbed.held()


def test_a_day_whose_parts_cannot_be_logged_ends_with_the_next_call(
    between: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = filled(tmp_path)
    append = server.logged.journal.append  # type: ignore[union-attr]

    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    between(lambda number: monkeypatch.setattr(server.logged.journal, "append", full))
    with pytest.raises(OSError, match="No space"):
        server.shrink(1)
    between(lambda number: None)
    monkeypatch.setattr(server.logged.journal, "append", append)
    assert server.shrink(5) == 0, "a day of its own, after what was left of the other"
    assert sorted(server.held()) == NEW.tolist()
    assert server.logged.table.day == 3
    assert Server(tmp_path).held() == server.held()


def test_ids_that_wait_for_a_row_are_forgotten_in_parts_too(between: Any) -> None:
    between(lambda number: None)
    server = Server(None, CountFilterEntry(2))
    table, out = server.logged.table, np.empty((1000, 2), np.float32)
    table.pull(np.arange(1000), out, train=True)
    server.shrink(1)
    table.pull(np.arange(300), out[:300], train=True)  # for the second time, and let in
    table.pull(np.arange(1000, 1100), out[:100], train=True)
    server.shrink(1)
    ids, counts, _ = table.waiting_part(0, 0)  # type: ignore[misc]
    assert sorted(ids) == [*range(1000, 1100)]
    assert set(counts) == {1}
    table.pull(np.arange(300, 1000), out[:700], train=True)
    assert len(table) == 300, "they begin anew"
