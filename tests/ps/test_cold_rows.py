"""Records of rows in a file: a dictionary that grows, shrinks, and is read in parts."""

import errno
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fleetx.ps.tables import cold_rows
from fleetx.ps.tables.cold_rows import ColdRows, NoRoomError
from fleetx.ps.tables.hashing import mixed, parts_of
from fleetx.ps.tables.kernels import numba_kernels, numpy_kernels
from fleetx.ps.tables.kernels.numpy_places import HELD, OVER, WIDE, words_at
from fleetx.ps.tables.places import LOAD

RECORD = np.dtype([("id", np.int64), ("stamps", np.int64), ("weights", np.int8, (8,))])
LITTLE = 1
"""Memory for segments of the fewest records."""
ENGINES = [pytest.param(numpy_kernels, id="numpy"), pytest.param(numba_kernels, id="numba")]


def records(ids: Any, seed: int) -> Any:
    made = np.zeros(len(ids), RECORD)
    made["id"], made["stamps"] = ids, (np.arange(len(ids)) + seed) << 34
    made["weights"] = np.random.default_rng(seed).integers(-100, 100, (len(ids), 8))
    return made


def plain(found: Any) -> dict[int, tuple[Any, ...]]:
    assert len(np.unique(found["id"])) == len(found), "each once"
    return {int(each["id"]): (int(each["stamps"]), *each["weights"].tolist()) for each in found}


def found(rows: ColdRows, ids: Any) -> dict[int, tuple[Any, ...]]:
    return plain(rows.find(np.unique(ids))[0])


def holes(rows: ColdRows) -> float:
    """Holes in the file, for each record that is alive."""
    places = int(rows._segments.sealed.sum()) * rows._size
    return (places - len(rows)) / max(len(rows), 1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("where", ["everywhere", "at the end of the hash range"])
def test_it_is_a_dictionary(where: str, engine: ModuleType) -> None:
    chance = np.random.default_rng(0)
    ids = chance.integers(-(2**63), 2**63 - 1, 30_000)
    ids = ids[:8000] if where == "everywhere" else ids[np.argsort(mixed(ids))[-8000:]]
    ids[0] = 0
    rows, held = ColdRows(None, RECORD, engine, LITTLE), dict[int, tuple[Any, ...]]()
    for turn in range(24):
        given = records(chance.choice(ids[: 400 * (turn + 1)], 350, replace=False), turn)
        rows.put(given)
        held |= plain(given)
        gone = chance.choice(ids, 150, replace=False)
        assert rows.delete(gone) == len({*gone.tolist()} & {*held})
        for each in gone.tolist():
            held.pop(each, None)
        some = records(chance.choice([*held], 40, replace=False), turn + 100)
        places = rows.find(some["id"].copy())[1]
        rows.forget(some["id"].copy(), places)  # as those that come to memory
        assert not rows.knows(some["id"].copy()).any()
        rows.add(some)
        held |= plain(some)
        assert len(rows) == len(held)
        assert found(rows, ids) == held
        assert [*rows.knows(ids)] == [each in held for each in ids.tolist()]
    assert rows._segments.sealed.sum() > 3, "most are in the file"
    for bits in (0, 3):
        parts = [plain(rows.part(number, bits)) for number in range(1 << bits)]
        assert sum(map(len, parts)) == len(held)
        for number, part in enumerate(parts):
            mine = [each for each in held if not bits or parts_of(np.array([each]), bits) == number]
            assert part == {each: held[each] for each in mine}
    rows.clear()
    assert len(rows) == len(rows.find(ids)[0]) == 0
    rows.put(given)
    assert found(rows, ids) == plain(given)


def filled(engine: ModuleType, count: int, turns: int) -> ColdRows:
    """Records that come and go by chance, those of a hash range together."""
    chance, rows = np.random.default_rng(1), ColdRows(None, RECORD, engine, LITTLE)
    ids = np.arange(count)
    rows.put(records(ids[np.argsort(mixed(ids))], 0))
    for turn in range(turns):
        near = ids[parts_of(ids, 3) == turn % 8]
        rows.put(records(chance.choice(near, len(near) // 2, replace=False), turn))
    return rows


def test_both_engines_keep_the_same_in_the_same_places() -> None:
    """Also where one piece of the hash range is full before others have anything."""
    one, other = filled(numpy_kernels, 9000, 24), filled(numba_kernels, 9000, 24)
    assert (one._places.lines == other._places.lines).all()
    assert (one._segments.live == other._segments.live).all()
    for number in range(8):
        assert plain(one.part(number, 3)) == plain(other.part(number, 3))


def test_an_index_counts_who_went_past_each_line_and_takes_little_memory() -> None:
    rows = filled(numba_kernels, 60_000, 40)
    rows.expect(80_000)
    size = rows._places.nbytes
    rows.put(records(np.arange(60_000, 80_000), 1))
    assert rows._places.nbytes == size, "it was told before"
    lines = rows._places.lines.reshape(-1, WIDE)
    taken = (lines[:, :HELD] != 2**32 - 1).sum(1)
    assert taken.sum() == len(rows) == 80_000
    assert (taken[lines[:, OVER] > 0] <= HELD).all()
    assert lines[:, OVER].any(), "some lines are full"
    rows.delete(np.arange(80_000))
    assert not lines[:, OVER].any()
    assert size < 1.6 * 80_000 * 64 / HELD / LOAD


def test_holes_are_few_and_what_is_left_of_a_segment_stays_with_its_neighbours() -> None:
    rows = filled(numba_kernels, 40_000, 100)
    assert holes(rows) < 2 * cold_rows.HOLES
    whole = rows._size
    spread = list[int]()
    for number in np.flatnonzero(rows._segments.sealed).tolist():
        ids = rows._words(number)[:whole]
        spread.append(len(np.unique(parts_of(ids, 3))))
    assert np.mean(spread) < 1.6, "parts of eight"
    size = rows.nbytes
    for turn in range(100):
        rows.put(records(np.arange(turn % 8, 40_000, 8), turn))
    assert rows.nbytes < 1.5 * size, "places are used again"


def test_segments_stay_where_they_are_while_others_come_and_go() -> None:
    """LMDB promises so much for its own transactions alone; that it is so is seen here."""
    chance, rows = np.random.default_rng(2), ColdRows(None, RECORD, numba_kernels, LITTLE)
    rows.put(records(np.arange(5000), 0))
    old = int(np.flatnonzero(rows._segments.sealed)[0])
    address, before = int(rows._segments.addresses[old]), rows._words(old).copy()
    for turn in range(300):
        rows.put(records(chance.choice(np.arange(5000, 20_000), 900, replace=False), turn))
        assert rows._segments.addresses[old] == address
        assert (words_at(address - 8 * rows._size, len(before)) == before).all()
    assert rows._segments.live[old] == rows._size


def test_a_part_asks_the_disk_for_its_segments_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, asked = filled(numba_kernels, 40_000, 20), list[int]()
    ask = rows._file.ask_for

    def note(address: int) -> None:
        ask(address)
        asked.append(address + 8 * rows._size)

    monkeypatch.setattr(rows._file, "ask_for", note)
    needed = set[int]()
    for number in range(16):
        asked.clear()
        places = rows._places.part(number, 4) >> rows._shift
        mine, counts = np.unique(places, return_counts=True)
        rows.part(number, 4)
        many = mine[(counts > rows._size // 8) & rows._segments.sealed[mine]].tolist()
        assert many, "most of a part is in few segments"
        assert {*rows._segments.addresses[many].tolist()} <= {*asked} | needed
        assert len({*asked} & needed) == 0, "not again for the next part"
        needed = {*rows._segments.addresses[mine[counts * cold_rows.MANY >= rows._size]].tolist()}


def test_all_that_is_deleted_gives_its_places_to_others() -> None:
    rows = filled(numba_kernels, 40_000, 8)
    size = rows.nbytes
    rows.delete(np.arange(40_000))
    assert len(rows) == 0
    for turn in range(40):
        rows.put(records(np.arange(turn * 1000, turn * 1000 + 1000), turn))
    assert rows.nbytes < 1.5 * size
    assert len(rows.find(np.arange(40_000))[0]) == 40_000


@pytest.mark.parametrize("bytes_", [24, 144, 4096 + 8])
@pytest.mark.parametrize("memory", [1, 1 << 20, 1 << 40])
def test_segments_fill_pages_and_take_a_small_share_of_memory(bytes_: int, memory: int) -> None:
    size = cold_rows._records_of(bytes_, memory)
    assert size & (size - 1) == 0
    assert size * bytes_ >= cold_rows.PAGES_BYTES
    least = max(cold_rows.PAGES_BYTES, 8 * bytes_)
    assert size * bytes_ < max(2 * least, memory // cold_rows.SHARE + 1)


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_without_room_is_named_and_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetx.ps.tables.segment_file.GROWTH", 0)
    monkeypatch.setattr("fleetx.ps.tables.segment_file.SPARE", 8)
    rows = ColdRows(tmp_path, RECORD, numba_kernels, LITTLE)
    before = records(np.arange(2000), 0)
    rows.put(before)
    size = rows.nbytes
    after = records(np.arange(1000, 9000), 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room)
        for keep in (rows.put, rows.add):
            with pytest.raises(NoRoomError, match=str(tmp_path)) as caught:
                keep(after)
            assert caught.value.errno == errno.ENOSPC
        assert rows.nbytes == size
        assert found(rows, np.arange(9000)) == plain(before)
        assert rows.delete(np.arange(500)) == 500, "to forget needs no room"
    rows.put(after)
    assert found(rows, np.arange(9000)) == plain(before[500:]) | plain(after)


def test_a_disk_that_is_full_leaves_holes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetx.ps.tables.segment_file.GROWTH", 0)
    monkeypatch.setattr("fleetx.ps.tables.segment_file.SPARE", 8)
    rows = filled(numba_kernels, 20_000, 8)
    rows.delete(np.arange(0, 20_000, 3))
    rows._file.reserve(1)  # for what is put now, and for nothing else
    given = records(np.arange(30_000, 30_000 + rows._size - rows._filled - 1), 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room)
        rows.put(given)
    assert found(rows, given["id"]) == plain(given)
    assert len(rows) == 20_000 - 6667 + len(given)


def test_more_records_than_places_can_be_numbered_are_refused_before_anything_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = ColdRows(None, RECORD, numba_kernels, LITTLE)
    monkeypatch.setattr(cold_rows, "FREE", 8 * rows._size)
    rows.put(records(np.arange(2 * rows._size), 0))
    with pytest.raises(NoRoomError, match="take more servers"):
        rows.put(records(np.arange(9 * rows._size), 1))
    assert found(rows, np.arange(9 * rows._size)) == plain(records(np.arange(2 * rows._size), 0))


@pytest.mark.parametrize("failing", range(8))
def test_a_disk_that_gives_less_than_it_promised_loses_nothing(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever segment cannot be written: of rows that come, or of those that are moved."""
    rows, count = filled(numba_kernels, 20_000, 12), 0
    before, put = found(rows, np.arange(20_000)), rows._file.put

    def fail(*given: Any) -> int:
        nonlocal count
        count += 1
        if count > failing:
            no_room()
        return put(*given)

    given = records(np.arange(0, 10_000, 4), 5)

    def put_often() -> None:
        for _ in range(20):
            rows.put(given)
            before.update(plain(given))

    with monkeypatch.context() as patch:
        patch.setattr(rows._file, "put", fail)
        with pytest.raises(NoRoomError):
            put_often()
        assert count > failing
        assert found(rows, np.arange(20_000)) == before
    assert len(rows) == sum(rows._segments.live) == 20_000
    rows.put(given)
    for turn in range(12):
        rows.put(records(np.arange(turn % 4, 20_000, 4), turn))
    assert len(rows) == sum(rows._segments.live) == 20_000
    assert holes(rows) < 2 * cold_rows.HOLES
