"""A server that dies loses nothing it has acknowledged and applies nothing twice."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.ps.desk import Desk
from fleetx.ps.frames import Flag, Frame, Op
from fleetx.ps.handshake import Claim
from fleetx.ps.journal import Journal
from fleetx.ps.members import Members
from fleetx.ps.rules import Adagrad, Adam
from fleetx.ps.served_dense import ServedDense
from fleetx.ps.served_sparse import ServedSparse
from fleetx.ps.sparse_spec import Pace, SparseSpec
from tests.ps.team import push, rows, table, team

DIM = 4


def desk(folder: Path | None = None, workers: int = 1, **options: Any) -> Desk:
    return Desk(Members(workers), folder=folder, patience=60, **options)


def sparse(desk: Desk, **spec: Any) -> ServedSparse:
    form = SparseSpec(name="t", dim=DIM, **spec).form()
    desk.call(Claim(0, 1), {"method": "create", "kind": "sparse", "spec": form})
    return desk.sparse(Frame(Op.PUSH, 0))


def push_frame(
    desk: Desk, seq: int, ids: Any, values: Any, *, worker: int = 0, step: int = 0
) -> None:
    body = memoryview(
        np.asarray(ids, np.int64).tobytes() + np.asarray(values, np.float32).tobytes()
    )
    frame = Frame(Op.PUSH, 0, Flag.UNIQUE, seq, len(ids), DIM, step, -1.0, len(body))
    desk.sparse(frame).change(Claim(worker, 100 + worker), frame, body)


def everything(served: ServedSparse) -> dict[int, tuple[float, ...]]:
    found = served.table.part(0, 0)
    both = np.concatenate([found.weights, found.state], 1)
    return dict(zip(found.ids.tolist(), map(tuple, both.tolist()), strict=True))


def batches(count: int, seed: int = 0) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(seed)
    ids = [generator.choice(2000, 300, replace=False) - 1000 for _ in range(count)]
    return [(i, generator.standard_normal((300, DIM)).astype(np.float32)) for i in ids]


@pytest.mark.parametrize("rule", [Adagrad(0.1), Adam(0.1)], ids=["adagrad", "adam"])
def test_the_log_alone_brings_everything_back(tmp_path: Path, rule: Any) -> None:
    undisturbed = sparse(first := desk(), rule=rule)
    dying = desk(tmp_path)
    sparse(dying, rule=rule)
    for seq, (ids, values) in enumerate(batches(10), 1):
        push_frame(first, seq, ids, values)
        push_frame(dying, seq, ids, values)
        if seq % 3 == 0:  # it dies without a word, and what it had not yet heard is sent again
            dying = desk(tmp_path)
            push_frame(dying, seq, ids, values)
    back = desk(tmp_path).sparse(Frame(Op.PULL, 0))
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
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = [(r.number, r.kind, bytes(r.data)) for r in Journal(tmp_path).records()]
        assert found == [(1, 1, b"first")] * (length >= end), length
    path.write_bytes(whole[:-1])
    again = Journal(tmp_path)
    assert [record.number for record in again.records()] == [1]
    assert again.append(3, [b"third"]) == 2
    again.close()
    assert [record.kind for record in Journal(tmp_path).records()] == [1, 3]


def test_a_save_in_the_middle_of_pushes_and_the_log_after_it(tmp_path: Path) -> None:
    """Parts are saved at different times; each takes from the log what came after it."""
    undisturbed, dying = sparse(first := desk()), sparse(second := desk(tmp_path))
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
    back = desk(tmp_path).sparse(Frame(Op.PULL, 0))
    assert (back.version, everything(back)) == (seq, everything(undisturbed))


def test_parts_saved_at_different_times_are_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, forced: a push falls between every two parts of the save."""
    monkeypatch.setattr("fleetx.ps.snapshot.PART_ROWS", 64)
    undisturbed, dying = sparse(first := desk()), sparse(second := desk(tmp_path))
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
    back = desk(tmp_path).sparse(Frame(Op.PULL, 0))
    assert everything(back) == everything(undisturbed)


def test_rounds_that_wait_for_a_worker_survive(tmp_path: Path) -> None:
    spec: dict[str, Any] = {"rule": Adagrad(0.1), "pace": Pace(workers=2)}
    undisturbed = sparse(first := desk(workers=2), **spec)
    second = desk(tmp_path, workers=2)
    sparse(second, **spec)
    (a, b), (c, d) = (batches(2, seed) for seed in (1, 2))
    for step, (one, other) in enumerate(((a, c), (b, d))):
        push_frame(first, step + 1, *one, worker=0, step=step)
        push_frame(first, step + 1, *other, worker=1, step=step)
        push_frame(second, step + 1, *one, worker=0, step=step)
        second.checkpoint(force=True)  # a save while the round is open
        second = desk(tmp_path, workers=2)
        push_frame(second, step + 1, *one, worker=0, step=step)
        assert second.sparse(Frame(Op.PULL, 0)).version == step
        push_frame(second, step + 1, *other, worker=1, step=step)
    back = desk(tmp_path, workers=2).sparse(Frame(Op.PULL, 0))
    assert (back.version, everything(back)) == (2, everything(undisturbed))


def test_dense_tables_come_back_with_their_optimizer(tmp_path: Path) -> None:
    form = {
        "name": "d",
        "blocks": [["w", 0, 6]],
        "optimizer": "SGD",
        "options": {"lr": 0.1, "momentum": 0.9},
        "pace": {"kind": "Pace"},
    }

    def dense(desk: Desk) -> ServedDense:
        desk.call(Claim(0, 1), {"method": "create", "kind": "dense", "spec": form})
        return desk.dense(Frame(Op.READ, 0))

    def write(desk: Desk, seq: int, values: Any, flag: int = 0) -> None:
        body = memoryview(np.asarray(values, np.float32).tobytes())
        frame = Frame(Op.WRITE, 0, flag, seq, 6, rate=-1.0, body=len(body))
        desk.dense(frame).change(Claim(0, 1), frame, body)

    undisturbed = dense(first := desk())
    dense(second := desk(tmp_path))
    for seq in range(1, 9):
        gradient = np.random.default_rng(seq).standard_normal(6)
        flag = Flag.FIRST if seq == 1 else 0
        write(first, seq, gradient, flag)
        write(second, seq, gradient, flag)
        if seq == 4:
            second.checkpoint(force=True)
        if seq % 3 == 0:
            second = desk(tmp_path)
            write(second, seq, gradient, flag)
    back = desk(tmp_path).dense(Frame(Op.READ, 0))
    assert (back.table.values == undisturbed.table.values).all()
    write(desk_ := desk(tmp_path), 9, np.zeros(6))
    write(first, 9, np.zeros(6))
    assert (desk_.dense(Frame(Op.READ, 0)).table.values == undisturbed.table.values).all()


def test_shrink_and_admission_are_in_the_log(tmp_path: Path) -> None:
    from fleetx.ps.entries import CountFilterEntry

    second = desk(tmp_path)
    served = sparse(second, entry=CountFilterEntry(2))
    out = np.empty((2, DIM), np.float32)
    for count in (1, 2):
        body = memoryview(np.array([3, 4 + count]).tobytes())
        frame = Frame(Op.PULL, 0, Flag.TRAIN, count=2, body=16)
        served.pull(Claim(0, 1), frame, body, out)
    push_frame(second, 1, [3], np.ones((1, DIM)))
    assert served.table.ids().tolist() == [3]
    back = desk(tmp_path)
    assert everything(back.sparse(frame)) == everything(served)
    back.call(Claim(0, 1), {"method": "shrink", "threshold": 1})
    last = desk(tmp_path).sparse(frame)
    assert (len(last.table), last.table.day) == (0, 1)


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
    back = desk(tmp_path / "server-0").sparse(Frame(Op.PULL, 0))
    assert manifest.exists()
    out = np.empty_like(expected)
    back.table.pull(np.arange(-1000, 1000), out, train=False)
    assert (out == expected).all()


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_log_waits_for_the_disk_at_every_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    waited: list[int] = []
    monkeypatch.setattr("fleetx.ps.journal.os.fdatasync", waited.append)
    here = desk(tmp_path, durable=durable)
    sparse(here)
    for number in range(3):
        push_frame(here, number + 1, [number], np.ones((1, DIM)))
    assert len(waited) == (3 if durable else 0)
