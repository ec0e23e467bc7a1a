"""A server that dies loses nothing it has acknowledged and applies nothing twice."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from fleetx.ps.server import snapshot
from fleetx.ps.server.logged_dense_table import LoggedDenseTable
from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.server.logged_table import TableLostError
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables import log_file, saves
from fleetx.ps.tables.entries import CountFilterEntry, ShowClickEntry
from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.journal import Journal
from fleetx.ps.tables.rules import SGD, Adagrad, Adam
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim
from tests.ps.team import push, rows, table, team

DIM = 4


def handler(folder: Path | None = None, workers: int = 1, **options: Any) -> RequestHandler:
    return RequestHandler(Membership(workers), folder=folder, patience=60, **options)


def sparse(handler: RequestHandler, **spec: Any) -> LoggedSparseTable:
    form = SparseSpec(name="t", dim=DIM, **spec).to_plain()
    handler.call(Claim(0, 1), {"method": "create", "kind": "sparse", "spec": form})
    return handler.sparse(Frame(Op.PUSH, 0))


def push_frame(
    handler: RequestHandler, seq: int, ids: Any, values: Any, *, worker: int = 0, step: int = 0
) -> None:
    body = memoryview(
        np.asarray(ids, np.int64).tobytes() + np.asarray(values, np.float32).tobytes()
    )
    frame = Frame(Op.PUSH, 0, Flag.UNIQUE, seq, len(ids), DIM, step, -1.0, len(body))
    handler.sparse(frame).change(Claim(worker, 100 + worker), frame, body)


def everything(logged: LoggedSparseTable) -> dict[int, tuple[float, ...]]:
    found = logged.table.part(0, 0)
    both = np.concatenate([found.weights, found.state], 1)
    return dict(zip(found.ids.tolist(), map(tuple, both.tolist()), strict=True))


def batches(count: int, seed: int = 0) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(seed)
    ids = [generator.choice(2000, 300, replace=False) - 1000 for _ in range(count)]
    return [(i, generator.standard_normal((300, DIM)).astype(np.float32)) for i in ids]


@pytest.mark.parametrize("rule", [Adagrad(0.1), Adam(0.1)], ids=["adagrad", "adam"])
def test_the_log_alone_brings_everything_back(tmp_path: Path, rule: Any) -> None:
    undisturbed = sparse(first := handler(), rule=rule)
    dying = handler(tmp_path)
    sparse(dying, rule=rule)
    for seq, (ids, values) in enumerate(batches(10), 1):
        push_frame(first, seq, ids, values)
        push_frame(dying, seq, ids, values)
        if seq % 3 == 0:  # it dies without a word, and what it had not yet heard is sent again
            dying = handler(tmp_path)
            push_frame(dying, seq, ids, values)
    back = handler(tmp_path).sparse(Frame(Op.PULL, 0))
    assert back.version == undisturbed.version == 10
    assert everything(back) == everything(undisturbed)


def test_a_record_that_was_cut_off_was_never_acknowledged(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(1, [b"first"])
    journal.append(2, [b"second", np.arange(3)])
    journal.close()
    (path,) = tmp_path.glob("*.log")
    whole = path.read_bytes()
    end = whole.index(b"first") + len(b"first") + 8
    for length in range(log_file.FILE_HEAD, len(whole)):
        path.write_bytes(whole[:length])
        found = [(r.number, r.kind, bytes(r.data)) for r in Journal(tmp_path).records()]
        assert found == [(1, 1, b"first")] * (length >= end), length
    path.write_bytes(whole[:-1])
    again = Journal(tmp_path)
    assert [record.number for record in again.records()] == [1]
    assert again.append(3, [b"third"]) == 2
    again.close()
    assert [record.kind for record in Journal(tmp_path).records()] == [1, 3]


@pytest.mark.parametrize("reserves", [True, False])
def test_a_killed_server_leaves_room_behind_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reserves: bool
) -> None:
    if not reserves:  # a disk that is nearly full
        refuse = mock.Mock(side_effect=OSError(28, "No space left on device"))
        monkeypatch.setattr("fleetx.ps.tables.journal.os.posix_fallocate", refuse)
    killed = Journal(tmp_path)
    for number in range(5):
        killed.append(number, [b"some", np.arange(20_000)])
    (path,) = tmp_path.glob("*.log")
    assert path.stat().st_size == log_file.FILE_HEAD + (1 << 20 if reserves else killed.bytes)
    again = Journal(tmp_path)
    assert [record.kind for record in again.records()] == [0, 1, 2, 3, 4]
    assert again.append(5, [b"more"]) == 6
    assert again.bytes == killed.bytes + 4 + log_file.RECORD_EXTRA
    assert [record.kind for record in Journal(tmp_path).records()] == [0, 1, 2, 3, 4, 5]
    killed.close()
    assert path.stat().st_size == log_file.FILE_HEAD + killed.bytes


def test_a_save_in_the_middle_of_pushes_and_the_log_after_it(tmp_path: Path) -> None:
    """Parts are saved at different times; each takes from the log what came after it."""
    undisturbed, dying = sparse(first := handler()), sparse(second := handler(tmp_path))
    stop = threading.Event()
    saves = 0

    def save() -> None:
        nonlocal saves
        while not stop.is_set():
            second.checkpoint(force=True)
            saves += 1

    thread = threading.Thread(target=save)
    thread.start()
    seq, work = 0, batches(20)
    deadline = time.monotonic() + 100  # a busy disk may take its time
    while saves < 4 and time.monotonic() < deadline:
        seq += 1
        time.sleep(0 if seq < 2000 else 0.01)
        push_frame(first, seq, *work[seq % 20])
        push_frame(second, seq, *work[seq % 20])
    stop.set()
    thread.join()
    assert saves >= 4
    assert everything(dying) == everything(undisturbed)
    logs = len(list(tmp_path.rglob("*.log")))
    assert logs <= 3, "what was saved is not kept in the log"
    back = handler(tmp_path).sparse(Frame(Op.PULL, 0))
    assert (back.version, everything(back)) == (seq, everything(undisturbed))


def test_parts_saved_at_different_times_are_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, forced: a push falls between every two parts of the save."""
    monkeypatch.setattr("fleetx.ps.server.snapshot.PART_ROWS", 64)
    undisturbed, dying = sparse(first := handler()), sparse(second := handler(tmp_path))
    work = iter(enumerate(batches(300), 1))

    def one() -> None:
        seq, (ids, values) = next(work)
        push_frame(first, seq, ids, values)
        push_frame(second, seq, ids, values)

    for _ in range(5):
        one()
    plain, between = dying.table.part, []

    def part(number: int, bits: int, since: int = 0) -> Any:
        between.append(number)
        found = plain(number, bits, since)
        one()
        return found

    monkeypatch.setattr(dying.table, "part", part)
    second.checkpoint(force=True)
    monkeypatch.undo()
    assert len(between) >= 16
    one()
    back = handler(tmp_path).sparse(Frame(Op.PULL, 0))
    assert everything(back) == everything(undisturbed)


def test_rounds_that_wait_for_a_worker_survive(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"rule": Adagrad(0.1), "pace": Pace(workers=2)}
    undisturbed = sparse(first := handler(workers=2), **spec)
    second = handler(tmp_path, workers=2)
    sparse(second, **spec)
    (a, b), (c, d) = (batches(2, seed) for seed in (1, 2))
    for step, (one, other) in enumerate(((a, c), (b, d))):
        push_frame(first, step + 1, *one, worker=0, step=step)
        push_frame(first, step + 1, *other, worker=1, step=step)
        push_frame(second, step + 1, *one, worker=0, step=step)
        second.checkpoint(force=True)  # a save while the round is open
        second = handler(tmp_path, workers=2)
        push_frame(second, step + 1, *one, worker=0, step=step)
        assert second.sparse(Frame(Op.PULL, 0)).version == step
        push_frame(second, step + 1, *other, worker=1, step=step)
    back = handler(tmp_path, workers=2).sparse(Frame(Op.PULL, 0))
    assert (back.version, everything(back)) == (2, everything(undisturbed))


def test_dense_tables_come_back_with_their_optimizer(tmp_path: Path) -> None:
    form = {
        "name": "d",
        "blocks": [["w", 0, 6]],
        "optimizer": "SGD",
        "options": {"lr": 0.1, "momentum": 0.9},
        "pace": {"kind": "Pace"},
    }

    def dense(handler: RequestHandler) -> LoggedDenseTable:
        handler.call(Claim(0, 1), {"method": "create", "kind": "dense", "spec": form})
        return handler.dense(Frame(Op.READ, 0))

    def write(handler: RequestHandler, seq: int, values: Any, flag: int = 0) -> None:
        body = memoryview(np.asarray(values, np.float32).tobytes())
        frame = Frame(Op.WRITE, 0, flag, seq, 6, rate=-1.0, body=len(body))
        handler.dense(frame).change(Claim(0, 1), frame, body)

    undisturbed = dense(first := handler())
    dense(second := handler(tmp_path))
    for seq in range(1, 9):
        gradient = np.random.default_rng(seq).standard_normal(6)
        flag = Flag.INITIAL if seq == 1 else 0
        write(first, seq, gradient, flag)
        write(second, seq, gradient, flag)
        if seq == 4:
            second.checkpoint(force=True)
        if seq % 3 == 0:
            second = handler(tmp_path)
            write(second, seq, gradient, flag)
    back = handler(tmp_path).dense(Frame(Op.READ, 0))
    assert (back.table.values == undisturbed.table.values).all()
    write(handler_ := handler(tmp_path), 9, np.zeros(6))
    write(first, 9, np.zeros(6))
    assert (handler_.dense(Frame(Op.READ, 0)).table.values == undisturbed.table.values).all()


def test_shrink_and_admission_are_in_the_log(tmp_path: Path) -> None:
    second = handler(tmp_path)
    logged = sparse(second, entry=CountFilterEntry(2))
    out = np.empty((2, DIM), np.float32)
    for count in (1, 2):
        body = memoryview(np.array([3, 4 + count]).tobytes())
        frame = Frame(Op.PULL, 0, Flag.TRAIN, count=2, body=16)
        logged.pull(Claim(0, 1), frame, body, out)
    push_frame(second, 1, [3], np.ones((1, DIM)))
    assert logged.table.ids().tolist() == [3]
    back = handler(tmp_path)
    assert everything(back.sparse(frame)) == everything(logged)
    for _ in range(2):
        back.call(Claim(0, 1), {"method": "shrink", "threshold": 1})
    last = handler(tmp_path).sparse(frame)
    assert (len(last.table), last.table.day) == (0, 2)


def test_a_long_log_is_cut_by_itself(tmp_path: Path) -> None:
    with team(folder=tmp_path, log_limit=50_000) as here:
        client = here.client()
        handle = table(client, SparseSpec(name="t", dim=DIM))
        for ids, values in batches(60):
            push(client, handle, ids, values)
        expected = rows(client, handle, np.arange(-1000, 1000))
        deadline = time.monotonic() + 60
        manifest = tmp_path / "server-0" / "0000" / "saved" / "manifest.json"
        while not manifest.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    back = handler(tmp_path / "server-0").sparse(Frame(Op.PULL, 0))
    assert manifest.exists()
    out = np.empty_like(expected)
    back.table.pull(np.arange(-1000, 1000), out, train=False)
    assert (out == expected).all()


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_log_waits_for_the_disk_at_every_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    waited: list[int] = []
    monkeypatch.setattr("fleetx.ps.tables.journal.os.fdatasync", waited.append)
    here = handler(tmp_path, durable=durable)
    sparse(here)
    for number in range(3):
        push_frame(here, number + 1, [number], np.ones((1, DIM)))
    assert len(waited) == (3 if durable else 0)


SLOW: dict[str, Any] = {"rule": SGD(1.0), "initializer": Constant(0.0)}


def look(handler: RequestHandler, ids: Any) -> Any:
    """The first number of each row."""
    out = np.empty((len(ids), DIM), np.float32)
    handler.sparse(Frame(Op.PULL, 0)).table.pull(np.asarray(ids, np.int64), out, train=False)
    return out[:, 0].tolist()


def step_down(handler: RequestHandler, seq: int, ids: Any, size: float, **options: Any) -> None:
    """Move rows up by ``size``."""
    push_frame(handler, seq, ids, np.full((len(ids), DIM), -size), **options)


def saved(handler: RequestHandler, folder: Path, **options: Any) -> Path:
    message = {"method": "save", "folder": str(folder), "delta": False} | options
    answer = handler.call(Claim(0, 1), message)
    saves.write_list(folder, [answer])
    return folder


DENSE = {
    "name": "d",
    "blocks": [["w", 0, 6]],
    "optimizer": "SGD",
    "options": {"lr": 0.1, "momentum": 0.9},
    "pace": {"kind": "Pace"},
}


def write_dense(handler: RequestHandler, seq: int, value: float, flag: int = 0) -> None:
    body = memoryview(np.full(6, value, np.float32).tobytes())
    frame = Frame(Op.WRITE, 1, flag, seq, 6, rate=-1.0, body=len(body))
    handler.dense(frame).change(Claim(0, 1), frame, body)


def test_a_server_that_began_with_a_save_comes_back_with_it(tmp_path: Path) -> None:
    def make(handler: RequestHandler) -> RequestHandler:
        sparse(handler, **SLOW)
        handler.call(Claim(0, 1), {"method": "create", "kind": "dense", "spec": DENSE})
        return handler

    first = make(handler())
    step_down(first, 1, [1, 2], 5)
    write_dense(first, 2, 9.0, Flag.INITIAL)
    folder = saved(first, tmp_path / "model")
    second = handler(tmp_path / "state")
    second.preload(folder, None)
    make(second)
    write_dense(second, 1, 0.5, Flag.INITIAL)  # what worker 0 would begin with
    step_down(second, 2, [1], 2)
    for _ in range(2):  # also after a second death
        second = handler(tmp_path / "state")
        second.preload(folder, None)
        make(second)
        assert look(second, [1, 2, 3]) == [7, 5, 0]
        assert (second.dense(Frame(Op.READ, 1)).table.values == 9).all()


def test_a_server_that_died_while_it_began_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse(first := handler(), **SLOW)
    step_down(first, 1, [1], 5)
    folder = saved(first, tmp_path / "model")
    for point in ("_fill", "_write_down"):
        dying = handler(tmp_path / point)
        dying.preload(folder, None)
        with monkeypatch.context() as patch:
            patch.setattr(dying._store, point, killed)
            with pytest.raises(KilledError):
                sparse(dying, **SLOW)
        back = handler(tmp_path / point)
        back.preload(folder, None)
        sparse(back, **SLOW)
        assert look(back, [1]) == [5], point


class KilledError(BaseException):
    """Stands for a signal: nothing of the server's own catches it."""


def killed(*args: Any, **options: Any) -> None:
    raise KilledError


def dying_at(patch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Let a process die at its ``number``-th step of replacing a folder; rmtree half way."""
    steps: list[str] = []

    def counted(name: str, real: Any, half: Any) -> Any:
        def step(*args: Any, **options: Any) -> Any:
            steps.append(name)
            if len(steps) == number:
                half(*args)
                raise KilledError
            return real(*args, **options)

        return step

    def half_removed(folder: Path) -> None:
        for path in sorted(folder.glob("rows-*")):
            path.unlink()

    patch.setattr(
        "fleetx.ps.tables.save_folder.os.replace", counted("replace", os.replace, lambda *a: None)
    )
    patch.setattr(
        "fleetx.ps.tables.save_folder.shutil.rmtree", counted("rmtree", shutil.rmtree, half_removed)
    )
    return steps


@pytest.mark.parametrize("number", range(1, 10))
def test_a_server_killed_while_it_writes_its_own_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """At each step, and again at the next attempt."""
    sparse(dying := handler(tmp_path), **SLOW)
    for seq in (1, 2):
        step_down(dying, seq, [seq], 5)
        dying.checkpoint(force=True)
    expected = [5, 5, 0, 0]
    for seq in (3, 4):
        step_down(dying, seq, [seq], seq)
        expected[seq - 1] = seq
        with monkeypatch.context() as patch:
            steps = dying_at(patch, number)
            with contextlib.suppress(KilledError):
                dying.checkpoint(force=True)
        dying = handler(tmp_path)
        assert look(dying, [1, 2, 3, 4]) == expected, steps
        if seq == 3:
            assert len(steps) == min(number, 8), "a whole replacement has eight steps"


@pytest.mark.parametrize("number", range(1, 9))
def test_a_save_over_another_one_leaves_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sparse(here := handler(), **SLOW)
    step_down(here, 1, [1], 5)
    folder = saved(here, tmp_path / "model")
    step_down(here, 2, [1], 2)
    with monkeypatch.context() as patch:
        dying_at(patch, number)
        with contextlib.suppress(KilledError):
            saved(here, folder)
    sparse(other := handler(), **SLOW)
    other.load(folder)
    assert look(other, [1]) in ([5], [7])
    saved(here, folder)
    other.load(folder)
    assert look(other, [1]) == [7]


def test_a_round_that_ended_short_before_a_save_ends_no_other_one(tmp_path: Path) -> None:
    here = handler(tmp_path, workers=3)
    sparse(here, **SLOW, pace=Pace(workers=3))
    here.call(Claim(2, 102), {"method": "rest", "resting": True})
    step_down(here, 1, [1], 2, worker=0, step=0)
    step_down(here, 2, [1], 6, worker=0, step=1)  # ahead of worker 1
    step_down(here, 1, [1], 4, worker=1, step=0)
    assert (here.sparse(Frame(Op.PULL, 0)).version, look(here, [1])) == (1, [3])
    here.checkpoint(force=True)
    back = handler(tmp_path, workers=3)
    assert (back.sparse(Frame(Op.PULL, 0)).version, look(back, [1])) == (1, [3])
    step_down(back, 2, [1], 2, worker=1, step=1)
    assert (back.sparse(Frame(Op.PULL, 0)).version, look(back, [1])) == (2, [7])


def test_an_update_that_is_over_cannot_be_pushed_to(tmp_path: Path) -> None:
    form = SparseSpec(name="t", dim=DIM, pace=Pace(workers=1), **SLOW).to_plain()
    create = {"method": "create", "kind": "sparse", "spec": form}
    here = handler(tmp_path)
    assert here.call(Claim(0, 1), create) == {"table": 0, "version": 0}
    for step in range(5):
        step_down(here, step + 1, [1], 1, step=step)
    for server in (here, handler(tmp_path)):
        step_down(server, 5, [1], 1, step=4)  # sent again: not a mistake, and not taken twice
        assert server.call(Claim(0, 7), create) == {"table": 0, "version": 5}
        with pytest.raises(ValueError, match="pushed update 4 of table 't', which has seen 5"):
            step_down(server, 6, [1], 1, step=4)
        assert look(server, [1]) == [5]


@contextlib.contextmanager
def full_disk(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """There is room for the first bytes of a record, and not for the rest."""
    written: list[int] = []

    def pwritev(file: int, parts: list[Any], at: int) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(os.pwrite(file, bytes(parts[0])[:10], at))
        return written[0]

    with patch.context() as inner:
        inner.setattr("fleetx.ps.tables.journal.os.pwritev", pwritev)
        with pytest.raises(OSError, match="No space"):
            yield
    assert written == [10]


def test_a_push_that_cannot_be_logged_is_refused_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse(here := handler(tmp_path), **SLOW)
    step_down(here, 1, [1], 1)
    for _ in range(2):
        with full_disk(monkeypatch):
            step_down(here, 2, [2], 2)
    assert look(here, [1, 2]) == [1, 0]
    for seq in (2, 3):  # there is room again, and the refused one is sent once more
        step_down(here, seq, [seq], seq)
    assert look(here, [1, 2, 3]) == look(handler(tmp_path), [1, 2, 3]) == [1, 2, 3]


def test_a_day_whose_end_cannot_be_logged_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse(here := handler(tmp_path), **SLOW)
    step_down(here, 1, [1], 1)
    with full_disk(monkeypatch):
        here.call(Claim(0, 1), {"method": "shrink", "threshold": 1})
    for server in (here, handler(tmp_path)):
        found = server.sparse(Frame(Op.PULL, 0)).table
        assert (len(found), found.day) == (1, 0)


def test_ids_whose_admission_cannot_be_logged_are_not_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = sparse(here := handler(tmp_path), entry=CountFilterEntry(1), **SLOW)
    out = np.empty((1, DIM), np.float32)
    frame = Frame(Op.PULL, 0, Flag.TRAIN, count=1, body=8)
    with full_disk(monkeypatch):
        logged.pull(Claim(0, 1), frame, memoryview(np.array([3]).tobytes()), out)
    assert len(logged.table) == 0
    logged.pull(Claim(0, 1), frame, memoryview(np.array([3]).tobytes()), out)
    step_down(here, 1, [3], 2)
    assert look(here, [3]) == look(handler(tmp_path), [3]) == [2]


def test_a_change_that_fails_half_way_loses_the_table_and_not_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = sparse(here := handler(tmp_path), **SLOW)
    step_down(here, 1, [1], 1)

    def half(*args: Any, **options: Any) -> None:
        logged.table.updates += 1
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(logged.table, "push", half)
        with pytest.raises(TableLostError, match="MemoryError"):
            step_down(here, 2, [1], 2)
    for _ in range(2):  # sent again it is not acknowledged either
        with pytest.raises(TableLostError, match="start this server again"):
            step_down(here, 2, [1], 2)
    with pytest.raises(TableLostError):
        here.call(Claim(0, 1), {"method": "save", "folder": str(tmp_path / "m"), "delta": False})
    here.tidy()
    here.checkpoint(force=True)  # nothing is written over what is right
    back = handler(tmp_path)
    assert (back.sparse(Frame(Op.PULL, 0)).version, look(back, [1])) == (1, [1])
    step_down(back, 2, [1], 2)
    assert look(back, [1]) == look(handler(tmp_path), [1]) == [3]


def test_who_was_let_in_and_dropped_while_a_save_ran_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = sparse(here := handler(tmp_path), entry=CountFilterEntry(1), **SLOW)
    out = np.empty((1, DIM), np.float32)
    frame = Frame(Op.PULL, 0, Flag.TRAIN, count=1, body=8)
    plain = snapshot._parts

    def parts(*args: Any) -> Any:
        """Both fall between the begin of the save and its only part, which knows of both."""
        logged.pull(Claim(0, 1), frame, memoryview(np.array([3]).tobytes()), out)
        assert [logged.shrink(1) for _ in range(2)] == [0, 1]
        yield from plain(*args)

    monkeypatch.setattr(snapshot, "_parts", parts)
    here.checkpoint(force=True)
    assert len(logged.table) == len(handler(tmp_path).sparse(frame).table) == 0


def test_workers_that_count_shows_and_those_that_do_not_make_one_round() -> None:
    here = handler(workers=2)
    logged = sparse(here, entry=ShowClickEntry(), pace=Pace(workers=2), **SLOW)
    step_down(here, 1, [1, 2], 2, worker=0)
    ids, stats = np.array([2]), np.array([[5, 3]], np.float32)
    body = ids.tobytes() + np.full((1, DIM), -4, np.float32).tobytes() + stats.tobytes()
    flags = Flag.UNIQUE | Flag.COUNTS
    frame = Frame(Op.PUSH, 0, flags, 1, 1, DIM, 0, -1.0, len(body))
    logged.change(Claim(1, 101), frame, memoryview(body))
    found = logged.table.part(0, 0)
    counted = dict(zip(found.ids.tolist(), found.stats.tolist(), strict=True))
    assert counted == {1: [1, 0], 2: [6, 3]}
    assert look(here, [1, 2]) == [1, 3]


def test_a_worker_is_told_that_a_table_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with team() as here:
        client = here.client()
        handle = table(client, SparseSpec(name="t", dim=DIM))
        logged = here.handlers[0].sparse(Frame(Op.PULL, handle.numbers[0]))

        def fail(*args: Any, **options: Any) -> None:
            raise IndexError("no such row")

        with monkeypatch.context() as patch:
            patch.setattr(logged.table, "push", fail)
            with pytest.raises(RuntimeError, match="table 't' is lost"):
                push(client, handle, [1], np.ones((1, DIM)))
        with pytest.raises(RuntimeError, match=r"failed half way \(IndexError: no such row\)"):
            rows(client, handle, [1])
        assert client.call({"method": "heartbeat"}) == {}, "the connection is kept"
