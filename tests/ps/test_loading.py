"""Loading is restoring, deltas lack nothing, and a request that is sent again happens once."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables import saves
from fleetx.ps.tables.dense_table import DenseSpec, DenseTable
from fleetx.ps.tables.entries import CountFilterEntry
from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.rules import SGD, Adagrad
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.tables.sparse_table import LAST_MARK, SparseTable
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim

ME = Claim(0, 77)
SPEC = SparseSpec(name="t", dim=2, rule=SGD(1.0), initializer=Constant(0.0))


class Small:
    """A server with one table, and what a client would ask of it."""

    def __init__(self, folder: Path | None = None, spec: SparseSpec = SPEC) -> None:
        self.handler = RequestHandler(Membership(1), folder=folder)
        self.handler.call(ME, {"method": "create", "kind": "sparse", "spec": spec.to_plain()})
        self._seq = 0

    @property
    def table(self) -> SparseTable:
        return self.handler.sparse(Frame(Op.PULL, 0)).table

    def up(self, ids: list[int], size: float = 1.0) -> None:
        """Move rows up."""
        self._seq += 1
        n = len(ids)
        body = memoryview(np.array(ids).tobytes() + np.full((n, 2), -size, np.float32).tobytes())
        frame = Frame(Op.PUSH, 0, Flag.UNIQUE, self._seq, n, 2, 0, -1.0, len(body))
        self.handler.sparse(frame).change(ME, frame, body)

    def rows(self) -> dict[int, float]:
        """The first number of every row."""
        part = self.table.part(0, 0)
        return dict(zip(part.ids.tolist(), part.weights[:, 0].tolist(), strict=True))

    def call(self, method: str, **said: Any) -> dict[str, Any]:
        return self.handler.call(ME, {"method": method, **said})

    def shrink(self, threshold: int, **said: Any) -> int:
        return int(self.call("shrink", threshold=threshold, table=None, **said)["removed"])

    def forget_all(self) -> None:
        """End the day on which rows were met, and one on which none was."""
        assert self.shrink(1) == 0
        self.shrink(1)
        assert len(self.table) == 0

    def save(self, folder: Path, *, delta: bool = False, **said: Any) -> Path:
        answer = self.call("save", folder=str(folder), delta=delta, **said)
        saves.write_list(folder, [answer], delta=delta)
        if said.get("mark", True):
            self.call("saved")
        return folder


def chained(*folders: Path) -> dict[int, float]:
    """What one gets who loads these one after the other."""
    other = Small()
    for folder in folders:
        other.handler.load(folder)
    return other.rows()


def written(folder: Path) -> dict[int, float]:
    """The rows that a save holds, which may be a delta."""
    (piece,) = saves.Save.opened(folder).pieces_of("t")
    found = piece.read(piece.manifest["files"][0])
    return dict(zip(found["ids"].tolist(), found["rows"][:, 0].tolist(), strict=True))


def test_an_id_that_was_dropped_and_met_again_is_in_the_delta(tmp_path: Path) -> None:
    here = Small()
    here.up([1, 2, 3], 5)
    full = here.save(tmp_path / "full")
    here.forget_all()
    here.up([1], 7)
    delta = here.save(tmp_path / "delta", delta=True)
    assert chained(full, delta) == here.rows() == {1: 7}


def test_a_save_without_a_mark_takes_nothing_from_the_next_delta(tmp_path: Path) -> None:
    here = Small()
    here.up([1, 2, 3])
    full = here.save(tmp_path / "full")
    here.up([1])
    here.shrink(1)
    here.up([1, 2])
    here.shrink(1)  # 3 goes
    export = here.save(tmp_path / "export", mark=False)
    assert chained(export) == here.rows()
    here.up([2])
    delta = here.save(tmp_path / "delta", delta=True)
    assert chained(full, delta) == here.rows() == {1: 3, 2: 3}
    here.up([2])
    last = here.save(tmp_path / "last", delta=True)
    assert chained(full, delta, last) == here.rows()
    assert written(last) == {2: 4}, "a delta does move the mark"


def test_a_delta_is_loaded_onto_the_save_that_it_continues_and_onto_no_other(
    tmp_path: Path,
) -> None:
    here, other = Small(), Small()
    for each, folder in ((here, tmp_path / "here"), (other, tmp_path / "other")):
        each.up([1, 2, 3])
        each.save(folder / "full")
        each.up([1])
        each.save(folder / "first", delta=True)
        each.up([2])
        each.save(folder / "second", delta=True)
    mine = tmp_path / "here"
    for wrong in (
        (mine / "first",),
        (mine / "full", mine / "second"),
        (mine / "full", mine / "first", mine / "full", mine / "second"),
        (mine / "full", tmp_path / "other" / "first"),
    ):
        with pytest.raises(ValueError, match="load the full save and then each delta"):
            chained(*wrong)
    assert chained(mine / "full", mine / "first", mine / "second") == here.rows()
    back = Small(tmp_path / "state")
    back.handler.load(mine / "full")
    again = Small(tmp_path / "state")  # a server that died in between
    with pytest.raises(ValueError, match="which is not the one that was loaded last"):
        again.handler.load(mine / "second")
    assert again.rows() == back.rows(), "one that is refused changes nothing"
    again.handler.load(mine / "first")
    again.handler.load(mine / "second")
    assert again.rows() == here.rows()


def test_a_delta_takes_not_the_place_of_what_it_continues(tmp_path: Path) -> None:
    here, full, first = Small(), tmp_path / "full", tmp_path / "first"
    here.up([1])
    here.save(full)
    here.up([2])
    with pytest.raises(ValueError, match=r"full holds a full save.*folder of its own"):
        here.save(full, delta=True)
    here.save(first, delta=True)
    here.up([3])
    with pytest.raises(ValueError, match=r"first holds what this delta continues.*of its own"):
        here.save(first, delta=True)
    second = here.save(tmp_path / "second", delta=True)
    assert chained(full, first, second) == {1: 1.0, 2: 1.0, 3: 1.0}


def test_a_job_that_is_repeated_writes_its_delta_anew(tmp_path: Path) -> None:
    """After a death, from the save before it: the delta of then is over."""
    folders = [tmp_path / name for name in ("full", "delta")]
    for begun in (False, True):
        here = Small()
        if begun:
            here.handler.load(folders[0])
        else:
            here.up([1])
            here.save(folders[0])
        here.up([2])
        here.save(folders[1], delta=True)
        assert chained(*folders) == {1: 1.0, 2: 1.0}


def test_a_save_that_failed_takes_nothing_from_the_next_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Small()
    here.up([1, 2])
    full = here.save(tmp_path / "full")
    here.forget_all()
    here.up([1], 9)

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fleetx.ps.server.snapshot.write_json", fail)
        with pytest.raises(OSError, match="No space"):
            here.save(tmp_path / "broken", delta=True)
    assert list((tmp_path / "broken" / "t").iterdir()) == [], "what is half done takes no room"
    delta = here.save(tmp_path / "delta", delta=True)
    assert chained(full, delta) == here.rows() == {1: 9}


def test_a_delta_after_a_death_knows_what_was_dropped_before_it(tmp_path: Path) -> None:
    here = Small(tmp_path / "state")
    here.up([1, 2])
    full = here.save(tmp_path / "full")
    here.forget_all()
    here.up([3])
    here.handler.checkpoint(force=True)
    back = Small(tmp_path / "state")
    delta = back.save(tmp_path / "delta", delta=True)
    assert chained(full, delta) == here.rows() == {3: 1}


def test_a_delta_after_a_death_continues_what_was_saved_after_the_checkpoint(
    tmp_path: Path,
) -> None:
    here = Small(tmp_path / "state")
    here.up([1, 2, 3])
    full = here.save(tmp_path / "full")
    here.forget_all()
    here.up([1, 2])
    here.handler.checkpoint(force=True)
    here.up([1])
    first = here.save(tmp_path / "first", delta=True)
    here.up([2])
    back = Small(tmp_path / "state")
    second = back.save(tmp_path / "second", delta=True)
    assert chained(full, first, second) == chained(full, second) == back.rows() == {1: 2, 2: 2}


def test_a_delta_after_a_load_holds_what_was_loaded(tmp_path: Path) -> None:
    here = Small()
    here.up([1, 2])
    full = here.save(tmp_path / "full")
    other = Small()
    other.up([2, 3], 8)
    here.handler.load(other.save(tmp_path / "other"))
    delta = here.save(tmp_path / "delta", delta=True)
    assert chained(full, delta) == here.rows() == {2: 8, 3: 8}


def test_marks_begin_anew_and_deltas_lack_nothing(tmp_path: Path) -> None:
    here = Small()
    here.up([1, 2])
    here.table.mark = LAST_MARK - 3
    folders = [here.save(tmp_path / "full")]
    for number in range(4):  # in one of them the bits of a mark are full
        here.up([2 + number])
        folders.append(here.save(tmp_path / f"delta-{number}", delta=True))
        assert chained(*folders) == here.rows(), number
    assert here.table.mark < 10


def test_a_full_save_takes_the_place_of_everything(tmp_path: Path) -> None:
    here = Small(tmp_path / "state")
    here.up([1])
    full = here.save(tmp_path / "full")
    here.up([1, 2], 9)
    here.handler.load(full)
    assert here.rows() == Small(tmp_path / "state").rows() == {1: 1}
    here.up([2])
    assert here.rows() == Small(tmp_path / "state").rows() == {1: 1, 2: 1}


def test_days_go_on_where_they_were_saved(tmp_path: Path) -> None:
    here = Small()
    for _ in range(10):
        here.up([1])
        here.shrink(5)
    here.up([2])
    full = here.save(tmp_path / "full")
    other = Small()
    other.handler.load(full)
    assert other.table.day == 10
    assert [other.shrink(2) for _ in range(3)] == [0, 1, 1], "1 was met a day before 2"


@pytest.mark.parametrize("names", [["typo"], ["t", "typo"]])
def test_names_of_no_table_are_refused(tmp_path: Path, names: list[str]) -> None:
    here = Small()
    here.up([1])
    full = here.save(tmp_path / "full")
    with pytest.raises(ValueError, match=r"holds no table 'typo'; name some of \['t'\]"):
        here.call("load", folder=str(full), tables=names)
    with pytest.raises(ValueError, match="holds no table 'typo'"):
        RequestHandler(Membership(1)).preload(full, names)
    with pytest.raises(ValueError, match="no model of this job has one of that name"):
        RequestHandler(Membership(1)).load(full, ["t"])
    with pytest.raises(ValueError, match=r"there is no table 'typo' of rows; name one of \['t'\]"):
        here.call("shrink", threshold=3, table="typo")
    here.call("load", folder=str(full), tables=["t"])


def test_a_table_that_the_save_of_the_beginning_lacks_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = Small()
    here.up([1])
    full = here.save(tmp_path / "full")
    for names in (None, ["t"]):
        caplog.clear()
        begun = RequestHandler(Membership(1))
        begun.preload(full, names)
        for name in ("t", "other"):
            spec = replace(SPEC, name=name).to_plain()
            begun.call(ME, {"method": "create", "kind": "sparse", "spec": spec})
        told = [record.getMessage() for record in caplog.records]
        if names is None:
            (text,) = told
            assert f"{full}, with which" in text
            assert "nothing of table other, which begins anew; it holds t:" in text
        else:
            assert told == [], "what is left out on purpose is known"


def test_a_save_with_a_broken_file_is_refused_before_anything_changes(tmp_path: Path) -> None:
    here = Small()
    here.up([1])
    full = here.save(tmp_path / "full")
    here.up([1, 2])
    (path,) = (full / "t").rglob("rows-*")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        here.handler.load(full)
    assert here.rows() == {1: 2, 2: 1}


def dense(blocks: int, optimizer: str = "Adam") -> DenseSpec:
    cut = (("w", 0, blocks),) if blocks else ()
    return DenseSpec(name="d", blocks=cut, optimizer=optimizer, options={"lr": 0.1})


def step_dense(handler: RequestHandler, size: int, seq: int, flag: int = 0) -> DenseTable:
    frame = Frame(Op.WRITE, 0, flag, seq, size, rate=-1.0, body=4 * size)
    handler.dense(frame).change(ME, frame, memoryview(np.ones(size, np.float32).tobytes()))
    return handler.dense(frame).table


def made_dense(size: int, server: int = 0, servers: int = 1, **spec: Any) -> RequestHandler:
    handler = RequestHandler(Membership(1), server=server, servers=servers)
    form = dense(size, **spec).to_plain()
    handler.call(ME, {"method": "create", "kind": "dense", "spec": form})
    return handler


def test_a_server_without_a_part_of_the_parameters_goes_on_after_a_load(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    answers = []
    for server, size in enumerate((3, 0)):
        handler = made_dense(size, server, 2)
        step_dense(handler, size, 1, Flag.INITIAL)
        step_dense(handler, size, 2)
        said = {"method": "save", "folder": str(folder), "delta": False}
        answers.append(handler.call(ME, said))
    saves.write_list(folder, answers)
    for server, size in enumerate((3, 0)):
        handler = made_dense(size, server, 2)
        handler.load(folder)
        table = step_dense(handler, size, 3)
        assert table.arrays()["state.step"] == 2


def test_a_load_undoes_the_state_of_the_optimizer(tmp_path: Path) -> None:
    handler = made_dense(3)
    step_dense(handler, 3, 1, Flag.INITIAL)
    said = {"method": "save", "folder": str(tmp_path), "delta": False}
    saves.write_list(tmp_path, [handler.call(ME, said)])
    first = step_dense(handler, 3, 2).values.copy()
    for seq in (3, 4):
        step_dense(handler, 3, seq)
    handler.load(tmp_path)
    assert (step_dense(handler, 3, 5).values == first).all(), "the first step from there once more"
    for seq in (6, 7):
        step_dense(handler, 3, seq)
    saves.write_list(tmp_path, [handler.call(ME, said)])
    other = made_dense(3, optimizer="Adagrad")
    other.load(tmp_path)
    assert step_dense(other, 3, 1).arrays()["state.step"] == 1, "of Adam nothing but the values"


def test_the_state_of_another_rule_is_not_taken_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = {}
    for rule in (SGD(1.0), Adagrad(1.0)):
        here = Small(spec=replace(SPEC, rule=rule))
        here.up([1])
        folders[rule] = here.save(tmp_path / type(rule).__name__)
    for rule in (SGD(0.5), Adagrad(0.5)):
        for saved, folder in folders.items():
            caplog.clear()
            Small(spec=replace(SPEC, rule=rule)).handler.load(folder)
            told = "server-0 holds state of Adagrad, which is not taken" in caplog.text
            assert told == (isinstance(saved, Adagrad) and isinstance(rule, SGD))


def test_a_copy_of_dense_numbers_lies_where_there_was_room() -> None:
    """So that a save need not ask for memory while pushes wait."""
    handler = made_dense(3)
    step_dense(handler, 3, 1, Flag.INITIAL)
    table = step_dense(handler, 3, 2)
    buffers: dict[str, Any] = {
        n: np.full(shape, 7, np.float32) for n, shape in table.shapes().items()
    }
    copies = table.arrays(buffers)
    assert (
        buffers.keys()
        == copies.keys()
        == {"values", "state.step", "state.exp_avg"} | {"state.exp_avg_sq"}
    )
    assert all(copies[name] is buffers[name] for name in buffers)
    before = {name: copy.copy() for name, copy in copies.items()}
    step_dense(handler, 3, 3)
    assert all((copies[name] == before[name]).all() for name in buffers), "they are copies"
    assert table.arrays({"values": np.empty(9)})["values"].shape == (3,)


def test_a_numbered_shrink_ends_one_day_however_often_it_is_sent(tmp_path: Path) -> None:
    here = Small(tmp_path)
    here.up([1, 2])
    for expected in (0, 2):
        number = expected + 1
        assert here.shrink(1, call=number) == expected
        for _ in range(2):
            assert here.shrink(1, call=number) == expected, "the kept answer"
            here = Small(tmp_path)  # and a server that died meanwhile knows it
            assert here.shrink(1, call=number) == expected
            here.handler.checkpoint(force=True)
    assert (here.table.day, len(here.table)) == (2, 0)
    assert here.handler.call(Claim(0, 78), {"method": "shrink", "threshold": 1, "call": 1})
    assert here.table.day == 3, "another client has numbers of its own"
    here.shrink(2)
    assert here.table.day == 4, "without a number it is always a new one"


def test_a_numbered_delta_that_is_sent_again_is_not_emptied(tmp_path: Path) -> None:
    here = Small()
    here.up([1])
    here.save(tmp_path / "full")
    here.up([2])
    for _ in range(2):
        delta = here.save(tmp_path / "delta", delta=True, call=5)
        assert written(delta) == {2: 1}
    here.up([1])
    assert written(here.save(tmp_path / "next", delta=True, call=6)) == {1: 2}


def test_a_call_that_is_sent_again_while_it_runs_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Small()
    begun, go, answers = threading.Event(), threading.Event(), []
    runs: list[int] = []

    def slow(claim: Claim, said: dict[str, Any]) -> dict[str, Any]:
        runs.append(1)
        begun.set()
        assert go.wait(30)
        return {"tables": ["t"]}

    monkeypatch.setattr(here.handler, "_save", slow)

    def ask() -> None:
        answers.append(here.call("save", folder=str(tmp_path), delta=True, call=1))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    go.set()
    for thread in threads:
        thread.join(30)
    assert answers == [{"tables": ["t"]}] * 2
    assert len(runs) == 1


def test_those_who_wait_for_a_row_are_saved_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part is copied with more than its share under the lock, and none is forgotten."""
    monkeypatch.setattr("fleetx.ps.server.snapshot.PART_ROWS", 64)
    spec = SparseSpec(name="t", dim=2, entry=CountFilterEntry(2))
    here, ids = Small(spec=spec), np.arange(5000)
    out = np.empty((5000, 2), np.float32)
    here.table.pull(ids, out, train=True)
    here.table.pull(ids[:10], out[:10], train=True)  # these are let in
    plain, sizes = here.table.waiting_part, []

    def part(number: int, bits: int) -> Any:
        found = plain(number, bits)
        assert found is not None
        sizes.append(len(found[0]))
        return found

    monkeypatch.setattr(here.table, "waiting_part", part)
    folder = here.save(tmp_path)
    assert sum(sizes) == 4990
    assert max(sizes) < 200
    other = Small(spec=spec)
    other.handler.load(folder)
    assert len(other.table) == 10
    other.table.pull(ids, out, train=True)
    assert len(other.table) == 5000
