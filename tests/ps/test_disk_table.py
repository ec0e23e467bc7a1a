"""Tables larger than memory: they do all that those in memory do, and forget nothing."""

import errno
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.api.table_saves import save
from fleetx.nn import SparseEmbedding
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables import disk_table
from fleetx.ps.tables.byte_size import byte_size
from fleetx.ps.tables.disk_table import DiskTable
from fleetx.ps.tables.entries import CountFilterEntry, ShowClickEntry
from fleetx.ps.tables.hashing import parts_of
from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.rules import SGD, Adagrad, Adam
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.tables.sparse_table import LAST_DAY, SparseTable
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim
from tests.ps.team import push, rows, table, team

DIM, HOT = 3, 64
IDS = np.arange(-300, 300)


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_table, "FEWEST", HOT)
    monkeypatch.setattr(disk_table, "PART_ROWS", 16)


def spec(**options: Any) -> SparseSpec:
    return SparseSpec(name="t", dim=DIM, storage="disk", memory=1, **options)


def pulled(table: SparseTable, ids: Any, *, train: bool = True) -> Any:
    out = np.empty((len(ids), DIM), np.float32)
    table.pull(ids, out, train=train)
    return out


def everything(table: SparseTable, since: int = 0) -> dict[int, tuple[float, ...]]:
    found = table.part(0, 0, since)
    days = found.days[:, None]
    both = np.concatenate([found.weights, found.state, found.stats, days], 1)
    assert len(set(found.ids.tolist())) == len(found.ids), "each once"
    return dict(zip(found.ids.tolist(), map(tuple, both.tolist()), strict=True))


@pytest.mark.parametrize(
    ("rule", "entry", "dtype"),
    [
        (SGD(0.1), None, "float32"),
        (Adagrad(0.1), ShowClickEntry(lowest=0.15), "float32"),
        (Adam(0.1), CountFilterEntry(2), "float32"),
        (Adagrad(0.1), ShowClickEntry(lowest=0.15), "int8"),
        (Adam(0.1), None, "bfloat16"),
    ],
)
def test_it_does_what_a_table_in_memory_does(
    rule: Any, entry: Any, dtype: str, tmp_path: Path
) -> None:
    form, draw = spec(rule=rule, entry=entry, dtype=dtype), np.random.default_rng(0)
    disk, memory = DiskTable(form, folder=tmp_path), SparseTable(form)
    assert not [*tmp_path.iterdir()], "its file has no name, so nothing is left of it"
    marks, most = [], 0
    for turn in range(60):
        ids = draw.choice(IDS, int(draw.integers(1, 50)), replace=turn % 3 == 0)
        assert (pulled(disk, ids) == pulled(memory, ids)).all()
        change = draw.standard_normal((len(ids), DIM)).astype(np.float32)
        others = draw.choice(IDS, 20)
        for each in (disk, memory):
            each.push(ids, change) if turn % 4 else each.add(ids, change)
            if turn % 10 == 7:
                marks.append(each.begin_mark())
            if turn % 13 == 12:
                each.drop(others)
        if turn % 15 == 14:
            assert sorted(disk.shrink(2)) == sorted(memory.shrink(2))
        assert disk.hot <= HOT + 50
        assert len(disk) == len(memory)
        most = max(most, len(disk))
        assert (disk.knows(IDS) == memory.knows(IDS)).all()
        assert (pulled(disk, IDS, train=False) == pulled(memory, IDS, train=False)).all()
    assert everything(disk) == everything(memory)
    assert everything(disk, marks[-1]) == everything(memory, marks[-1])
    assert most > 2 * HOT, "most rows were on the disk"
    bits = 3
    for number in range(1 << bits):
        assert sorted(disk.ids(number, bits)) == sorted(memory.ids(number, bits))
    disk.clear()
    assert (len(disk), disk.hot, everything(disk)) == (0, 0, {})


def test_stamps_begin_anew_on_the_disk_too() -> None:
    disk, memory = DiskTable(spec()), SparseTable(spec())
    for each in (disk, memory):
        for ids in np.array_split(IDS, 20):
            pulled(each, ids)
        each.begin_day(LAST_DAY - 2)
        pulled(each, IDS[:30])
        each.begin_day(LAST_DAY - 1)
    assert disk.day == memory.day < LAST_DAY // 2 + 1
    assert everything(disk) == everything(memory)
    assert sorted(disk.shrink(5)) == sorted(memory.shrink(5)) == IDS[30:].tolist()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_rows_of_a_save_take_the_place_of_those_in_memory_and_of_those_on_the_disk(
    dtype: str,
) -> None:
    form, other = spec(rule=Adagrad(0.1), dtype=dtype), SparseTable(spec(rule=Adagrad(0.1)))
    disk, memory = DiskTable(form), SparseTable(form)
    other.begin_day(3)
    other.push(IDS[100:500], np.ones((400, DIM), np.float32))
    for each in (disk, memory):
        each.begin_day(5)
        for ids in np.array_split(IDS[:400], 10):
            each.push(ids, np.ones((len(ids), DIM), np.float32))
        mark = each.begin_mark()
        for number in range(4):
            each.put(other.part(number, 2))
    assert len(disk) == len(memory) == 500
    assert everything(disk) == everything(memory)
    assert sorted(disk.part(0, 0, mark).ids) == IDS[100:500].tolist()
    bare = memory.part(0, 0)
    for each in (disk, memory):  # a save of another rule brings no state
        each.put(replace(bare, state=np.empty((500, 0), np.float32), weights=bare.weights + 1))
    assert everything(disk) == everything(memory)


def test_rows_leave_memory_everywhere_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an index would grow at one end for ever, beyond the memory that was given."""
    monkeypatch.setattr(disk_table, "FEWEST", 4096)
    monkeypatch.setattr(disk_table, "PART_ROWS", 16384)
    table = DiskTable(spec(rule=Adagrad()))
    sizes = []
    for begin in range(0, 40_000, 2000):
        pulled(table, np.arange(begin, begin + 2000))
        sizes.append(table._index.nbytes)
    assert table.hot <= 4096
    assert sizes[-1] <= 1.1 * sizes[3], "it may grow once more, by one step"
    shares = np.bincount(parts_of(table.ids(), 3)[: table.hot], minlength=8) / table.hot
    assert 0.08 < shares.min() < shares.max() < 0.18


def test_rows_that_are_asked_for_often_stay_in_memory() -> None:
    table = DiskTable(spec())
    often, seldom = IDS[:20], np.array_split(IDS[20:], 58)
    for ids in seldom:
        pulled(table, often)
        pulled(table, ids)
    slots, _ = table._index.find(often)
    assert (slots >= 0).all()
    told = table.describe()
    assert told["rows"] == len(IDS)
    assert told["rows_in_memory"] == table.hot <= HOT + len(often)
    assert told["disk_bytes"] > 0
    places = told["bytes"] - table._rows.nbytes - table._index.nbytes
    assert places == table._cold.memory > 0, "where rows are on the disk is in memory"


def test_rows_of_the_batch_that_are_seldom_used_keep_no_others_from_leaving() -> None:
    """Memory has its bound even if all that may leave was used more often than what must stay."""
    table = DiskTable(spec())
    often, seldom, new = np.split(np.arange(HOT + 20), [HOT - 30, HOT])
    for _ in range(40):
        pulled(table, often)
    pulled(table, seldom)
    pulled(table, np.concatenate([seldom, new]))
    assert table.hot <= HOT


def test_uses_are_remembered_on_the_disk_and_fade_there_as_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk_table, "MEMORY_OF_USES", 1000)
    table, one = DiskTable(spec()), IDS[:1]

    def uses() -> int:
        slots, _ = table._index.find(one)
        return int(table._uses.array[slots[0], 0]) // disk_table.ONE_USE

    for _ in range(5):
        pulled(table, one)
    for ids in np.array_split(np.tile(IDS[1:], 9), 9 * 12):  # others are used as often
        pulled(table, ids)
    assert table._index.find(one)[1], "it is on the disk"
    pulled(table, one)
    assert uses() == 6
    for ids in np.array_split(np.tile(IDS[1:], 9), 9 * 12):
        pulled(table, ids)
    assert table._index.find(one)[1], "it is on the disk"
    monkeypatch.setattr(disk_table, "MEMORY_OF_USES", 0)
    pulled(table, IDS[1:2])  # all fade
    monkeypatch.setattr(disk_table, "MEMORY_OF_USES", 1000)
    pulled(table, one)
    assert uses() == 6 // 2 + 1


def test_a_server_with_rows_on_the_disk_comes_back_after_its_death(tmp_path: Path) -> None:
    """The file of the dead is gone: the log, and the save before it, know every row."""
    form, draw = spec(rule=Adagrad(0.1)), np.random.default_rng(1)
    memory = SparseTable(form)
    for life in range(3):
        with team(2, folder=tmp_path) as here:
            client = here.client()
            handle = table(client, form)
            tables: list[Any] = [handler._tables[0]._table for handler in here.handlers]
            for _ in range(20):
                ids = draw.choice(IDS, 40, replace=False)
                change = draw.standard_normal((40, DIM)).astype(np.float32)
                push(client, handle, ids, change)
                memory.push(ids, change)
            np.testing.assert_array_equal(
                rows(client, handle, IDS), pulled(memory, IDS, train=False)
            )
            assert all(each.hot < len(each) for each in tables)
            if life == 1:
                for handler in here.handlers:
                    handler.checkpoint(force=True)


def test_a_save_of_one_kind_is_loaded_into_the_other(tmp_path: Path) -> None:
    form = spec(rule=Adam(0.1))
    in_memory = SparseSpec(name="t", dim=DIM, rule=Adam(0.1))
    expected: Any = None
    for number, (one, other) in enumerate([(form, in_memory), (in_memory, form)]):
        folder = tmp_path / str(number)
        with team(2) as here:
            worker = here.worker()
            handle = table(worker.client, one)
            push(worker.client, handle, IDS, np.ones((len(IDS), DIM), np.float32))
            expected = rows(worker.client, handle, IDS)
            save(worker, folder, delta=False)
            worker.stop()
        with team(1) as here:
            client = here.client()
            handle = table(client, other)
            client.call_all({"method": "load", "folder": str(folder)})
            np.testing.assert_array_equal(rows(client, handle, IDS), expected)


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [("8GB", 8 * 10**9), ("1.5 GiB", 3 << 29), (4096, 4096), ("2tib", 2 << 40), ("7", 7)],
)
def test_sizes_are_read_as_people_write_them(given: Any, bytes_: int) -> None:
    assert byte_size(given) == bytes_


@pytest.mark.parametrize("given", ["8 gigs", "-1GB", "", 0, -5, True, 1.5, None, "0GB"])
def test_what_is_no_size_is_none(given: Any) -> None:
    assert byte_size(given) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"storage": "ssd"}, "storage='ssd' of table 't' is not known; use 'memory', or 'disk'"),
        ({"storage": "disk"}, "memory=None of table 't' with storage='disk' is no size"),
        ({"storage": "disk", "memory": "8 gigs"}, "memory='8 gigs' of table 't'"),
        ({"storage": "disk", "memory": "1KB"}, "from '1MiB'"),
        ({"memory": "8GB"}, "bounds nothing, for storage='memory' keeps all rows"),
        ({"dtype": "float8"}, "dtype='float8' of table 't' is not known; use one of float32"),
    ],
)
def test_nonsense_is_refused_where_the_layer_is_made(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SparseEmbedding(4, name="t", **options)


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class Asked:
    """A server with one table, of which the disk has no more room, and which is asked directly."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.handler = RequestHandler(Membership(1), folder=folder, patience=60)
        made = spec(rule=SGD(1.0), initializer=Constant(0.0), pace=Pace(workers=workers))
        message = {"method": "create", "kind": "sparse", "spec": made.to_plain()}
        self.handler.call(Claim(0, 7), message)
        self.logged = self.handler.sparse(Frame(Op.PUSH, 0))

    def push(self, ids: Any, seq: int) -> None:
        """One more in each row."""
        body = memoryview(ids.tobytes() + np.full((len(ids), DIM), -1, np.float32).tobytes())
        at = self.logged.version
        frame = Frame(Op.PUSH, 0, Flag.UNIQUE, seq, len(ids), DIM, at, -1.0, len(body))
        self.logged.change(Claim(0, 7), frame, body)

    def held(self) -> dict[int, float]:
        found = self.logged.table.part(0, 0)
        return dict(zip(found.ids.tolist(), found.weights[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("workers", [0, 1], ids=["as they come", "in rounds"])
def test_a_full_disk_refuses_what_needs_room_and_nothing_that_was_taken_is_lost(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetx.ps.tables.segment_file.GROWTH", 0)
    monkeypatch.setattr("fleetx.ps.tables.segment_file.SPARE", 8)
    server, taken, refusal = Asked(tmp_path, workers), list[Any](), OSError()
    server.push(np.arange(50), seq=1)
    taken.append(np.arange(50))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room)
        for seq in range(2, 20):
            ids = np.arange(50 * seq, 50 * seq + 50)
            try:
                server.push(ids, seq)
            except OSError as error:
                refusal = error
                break
            taken.append(ids)
        assert refusal.errno == errno.ENOSPC
        assert f"rows cannot be kept on the disk of {tmp_path}" in str(refusal)
        version = server.logged.version
        assert version == len(taken) < 18
        with pytest.raises(OSError, match="rows cannot be kept"):
            pulled(server.logged.table, ids)
        server.push(taken[-1], 50)  # what is in memory needs no room
        taken.append(taken[-1])
    server.push(ids, 51)
    taken.append(ids)
    server.push(np.arange(5000, 5300), 52)
    taken.append(np.arange(5000, 5300))
    counts = Counter(np.concatenate(taken).tolist())
    assert server.held() == counts
    assert not server.logged.lost
    assert Asked(tmp_path, workers).held() == counts, "the log knows the same"


def test_a_day_that_began_to_end_in_a_part_has_room_to_drop_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fleetx.ps.tables.segment_file.GROWTH", 0)
    counted = spec(entry=ShowClickEntry("show", "click"))
    ids, made = np.arange(20 * HOT), SparseTable(counted)
    pulled(made, ids)
    table = DiskTable(counted)
    table.put(made.part(0, 0))
    table.decay(ids)
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    table.drop(ids)  # counts have faded: nobody could take that back
    assert len(table) == 0
