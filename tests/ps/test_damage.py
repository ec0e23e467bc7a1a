"""What changed on the disk, or is missing there, is never loaded as if nothing had happened."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import fleetx as fleet
from fleetx.api import servers
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables import log_file, safetensors_file, save_folder, saves
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.tables.entries import CountFilterEntry
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.journal import Journal
from fleetx.ps.tables.row_source import TableOptions
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.save_folder import MANIFEST
from fleetx.ps.tables.saved_rows import SavedRows
from fleetx.ps.tables.saves import Save
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim

DIM = 4
ME = Claim(0, 1)
SPEC = SparseSpec(name="t", dim=DIM, rule=SGD(1.0), initializer=Constant(0.0))
DENSE = {
    "name": "d",
    "blocks": [["w", 0, 6]],
    "optimizer": "SGD",
    "options": {"lr": 1.0},
    "pace": {"kind": "Pace"},
}


def opened(folder: Path | None) -> RequestHandler:
    return RequestHandler(Membership(1), folder=folder, patience=60)


def add(handler: RequestHandler, seq: int, ids: list[int]) -> None:
    """One more in each of these rows."""
    values = np.full((len(ids), DIM), -1, np.float32)
    body = memoryview(np.asarray(ids, np.int64).tobytes() + values.tobytes())
    frame = Frame(Op.PUSH, 0, Flag.UNIQUE, seq, len(ids), DIM, 0, -1.0, len(body))
    handler.sparse(frame).change(ME, frame, body)


def write(handler: RequestHandler, seq: int, flag: int = 0) -> None:
    body = memoryview(np.full(6, -1, np.float32).tobytes())
    frame = Frame(Op.WRITE, 1, flag, seq, 6, rate=-1.0, body=len(body))
    handler.dense(frame).change(ME, frame, body)


def trained(folder: Path | None, pushes: int = 6) -> RequestHandler:
    """Two tables, a checkpoint in the middle, and logs behind it."""
    made = opened(folder)
    for kind, spec in (("sparse", SPEC.to_plain()), ("dense", DENSE)):
        made.call(ME, {"method": "create", "kind": kind, "spec": spec})
    write(made, 1, Flag.INITIAL)
    for seq in range(2, 2 + pushes):
        add(made, seq, [seq % 3, 7])
        write(made, seq)
        if seq == 4 and folder is not None:
            made.checkpoint(force=True)
    said = {"topic": "x", "number": 1, "value": 1.0, "strict": True}
    made.call(ME, {"method": "agree"} | said)
    return made


def held(handler: RequestHandler) -> tuple[dict[int, Any], list[float], int]:
    """All that was trained."""
    part = handler.sparse(Frame(Op.PULL, 0)).table.part(0, 0)
    sparse = dict(zip(part.ids.tolist(), map(tuple, part.weights.tolist()), strict=True))
    dense = handler.dense(Frame(Op.READ, 1))
    return sparse, dense.table.values.tolist(), dense.version


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a server that was killed, and what it held."""
    folder = tmp_path_factory.mktemp("state")
    return folder, held(trained(folder))


def copied(folder: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(folder, target))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(path: Path, position: float) -> int:
    """Turn one bit over; which byte it was in."""
    data = bytearray(path.read_bytes())
    bit = int(position * 8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))
    return bit // 8


def refused_or_right(folder: Path, load: Callable[[], Any], right: Any) -> None:
    """A load complains with the name of the file, or gives what was written."""
    complaint, found = "", None
    try:
        found = load()
    except DamagedError as error:
        complaint = str(error)
    if complaint:
        assert str(folder) in complaint
    else:
        assert found == right, "a silent load of something else"


def test_a_server_comes_back_from_all_kinds_of_files(tmp_path: Path, state: Any) -> None:
    folder, right = state
    names = {path.relative_to(folder).as_posix() for path in files(folder)}
    kinds = {"state.json", "meetings/log.json", "0000/log/log.json", "0000/saved/manifest.json"}
    kinds |= {"0000/spec.json", "0000/saved/rows-00000.safetensors"}
    assert kinds | {"0001/saved/dense.safetensors"} <= names
    assert held(opened(copied(folder, tmp_path / "s"))) == right


def test_no_file_of_a_state_can_be_missed(tmp_path: Path, state: Any) -> None:
    folder, _ = state
    for path in files(folder):
        here = copied(folder, tmp_path / "s")
        name = path.relative_to(folder)
        if name.name == "history":
            continue  # a name for followers, of whom each copies everything when it is lost
        (here / name).unlink()
        for _ in range(2):  # nor the second time
            with pytest.raises(DamagedError, match="begin with its last save") as caught:
                opened(here)
            assert str(here) in str(caught.value), name


def test_no_folder_of_a_state_can_be_missed(tmp_path: Path, state: Any) -> None:
    folder, _ = state
    for name in ("0000", "0001", "meetings", "0000/log", "0000/saved", "0001/saved"):
        here = copied(folder, tmp_path / "s")
        shutil.rmtree(here / name)
        with pytest.raises(DamagedError, match="missing"):
            opened(here)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, 10_000), position=st.floats(0, 1, exclude_max=True))
def test_a_bit_of_a_state_that_turns_over_is_noticed(
    tmp_path: Path, state: Any, which: int, position: float
) -> None:
    folder, right = state
    here = copied(folder, tmp_path / "s")
    path = files(here)[which % len(files(here))]
    flip(path, position)
    refused_or_right(here, lambda: held(opened(here)), right)


def test_every_byte_of_a_log_counts(tmp_path: Path) -> None:
    """Of each record: what it is, kind, number, length, both checksums, data and end."""
    journal = Journal(tmp_path / "log")
    for number in range(3):
        journal.append(number, [b"some data", np.arange(3)])
    journal.close()
    (path,) = (tmp_path / "log").glob("*.log")
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(bytes(damaged))
        with pytest.raises(DamagedError, match=r"\.log"):
            [*Journal(tmp_path / "log").records()]
    path.write_bytes(whole)
    assert len([*Journal(tmp_path / "log").records()]) == 3


def test_a_log_says_where_to_cut_it_after_a_power_failure(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(3):
        journal.append(number, [b"some data"])
    (path,) = tmp_path.glob("*.log")
    journal.close()
    whole = bytearray(path.read_bytes())
    at = log_file.FILE_HEAD + 2 * (9 + log_file.RECORD_EXTRA)
    whole[at : at + 30] = bytes(30)  # a block that had not come to the disk yet
    path.write_bytes(bytes(whole))
    with pytest.raises(DamagedError, match=f"truncate -s {at} ") as caught:
        [*Journal(tmp_path).records()]
    assert f"damaged at byte {at}: record 3" in str(caught.value)
    path.write_bytes(bytes(whole[:at]))
    assert [record.number for record in Journal(tmp_path).records()] == [1, 2]


def test_a_log_of_another_table_is_refused(tmp_path: Path, state: Any) -> None:
    folder, _ = state
    other = tmp_path / "other"
    trained(other)
    pieces = ("0000/log", "0000/saved", "0001/log", "0001/saved", "meetings", "state.json")
    for name in pieces:
        here = copied(folder, tmp_path / "s")
        if (here / name).is_dir():
            copied(other / name, here / name)
        else:
            shutil.copy(other / name, here / name)
        with pytest.raises(DamagedError):
            opened(here)
    for log in sorted((other / "0000" / "log").glob("*.log")):
        here = copied(folder, tmp_path / "s")
        shutil.copy(log, here / "0000" / "log")
        with pytest.raises(DamagedError, match="belongs to another log"):
            opened(here)


def test_an_older_checkpoint_does_not_fit_its_log(tmp_path: Path) -> None:
    here = trained(tmp_path / "s")
    old = copied(tmp_path / "s" / "0000" / "saved", tmp_path / "old")
    older_state = copied(tmp_path / "s", tmp_path / "older")
    for seq in (20, 21):
        add(here, seq, [1])
        here.checkpoint(force=True)
    copied(old, tmp_path / "s" / "0000" / "saved")
    with pytest.raises(DamagedError, match="not the checkpoint that the log"):
        opened(tmp_path / "s")
    copied(older_state / "0000" / "log", tmp_path / "s" / "0000" / "log")
    opened(tmp_path / "s")  # both of one time


@pytest.mark.parametrize("point", ["continue_from", "changed"])
def test_a_server_that_dies_between_a_checkpoint_and_its_log_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class KilledError(BaseException):
        pass

    def killed(*args: Any, **options: Any) -> None:
        raise KilledError

    here = trained(tmp_path)
    kind = "journal.Journal" if point == "continue_from" else "log_list.LogList"
    for seq in (20, 21):  # also twice in a row
        add(here, seq, [1])
        with monkeypatch.context() as patch:
            patch.setattr(f"fleetx.ps.tables.{kind}.{point}", killed)
            with pytest.raises(KilledError):
                here.checkpoint(force=True)
        right, here = held(here), opened(tmp_path)
        assert held(here) == right


def saved(folder: Path, pushes: int = 6) -> Path:
    here = trained(None, pushes)
    answer = here.call(ME, {"method": "save", "folder": str(folder), "delta": False})
    saves.write_list(folder, [answer])
    return folder


def loaded(folder: Path) -> Any:
    here = trained(None, 1)
    here.load(folder)
    return held(here)[:2]


def test_no_file_of_a_save_can_be_missed(tmp_path: Path) -> None:
    folder = saved(tmp_path / "save")
    for path in files(folder):
        here = copied(folder, tmp_path / "s")
        (here / path.relative_to(folder)).unlink()
        with pytest.raises(DamagedError) as caught:
            loaded(here)
        assert str(here / path.relative_to(folder)) in str(caught.value)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, 10_000), position=st.floats(0, 1, exclude_max=True))
def test_a_bit_of_a_save_that_turns_over_is_noticed(
    tmp_path: Path, which: int, position: float
) -> None:
    folder = tmp_path / "save"
    if not folder.exists():
        saved(folder)
    right = loaded(folder)
    here = copied(folder, tmp_path / "s")
    path = files(here)[which % len(files(here))]
    flip(path, position)
    refused_or_right(here, lambda: loaded(here), right)


def test_a_damaged_save_costs_no_table(tmp_path: Path) -> None:
    folder = saved(tmp_path / "save")
    flip(folder / "t" / "server-0" / "rows-00000.safetensors", 0.99)
    here = trained(None)
    before = held(here)
    with pytest.raises(DamagedError, match=r"rows-00000\.safetensors is damaged"):
        here.load(folder)
    assert held(here) == before


def test_pieces_of_two_saves_are_not_mixed(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "one"), saved(tmp_path / "other", 3)
    copied(other / "t", one / "t")
    with pytest.raises(DamagedError, match="belongs to another save"):
        loaded(one)
    two = saved(tmp_path / "two")
    name = "t/server-0/rows-00000.safetensors"
    shutil.copy(other / name, two / name)
    with pytest.raises(DamagedError, match="of another save"):
        loaded(two)


def test_a_save_over_another_one_that_was_not_completed_leaves_the_old_one(tmp_path: Path) -> None:
    folder = saved(tmp_path / "save", 3)
    right = loaded(folder)
    for _ in range(2):
        trained(None).call(ME, {"method": "save", "folder": str(folder), "delta": False})
        assert loaded(folder) == right, "the list still names what was there"
    saves.remove_replaced(folder)
    assert loaded(folder) == right
    assert loaded(saved(folder)) != right
    assert not [*folder.rglob("*.old")]


def unsealed(folder: Path) -> None:
    """As fleetx 0.1.0 wrote it."""
    for path in folder.rglob(MANIFEST):
        plain = save_folder.read_json(path)
        plain = {k: v for k, v in plain.items() if k not in ("pieces", "checksums")}
        path.write_text(json.dumps(plain))
    for path in folder.rglob("*.safetensors"):
        save_file(safetensors_file.read(path), path)


def test_a_save_of_the_version_before_is_read_and_said_to_be_unchecked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(tmp_path / "save")
    right = loaded(folder)
    assert not caplog.records
    unsealed(folder)
    assert loaded(folder) == right
    assert "written by fleetx 0.1.0, which wrote no checksums" in caplog.text
    other = saved(tmp_path / "other")
    shutil.copy(folder / MANIFEST, other / MANIFEST)
    with pytest.raises(DamagedError, match="one of them is damaged"):
        loaded(other)


def test_a_state_of_the_version_before_is_refused(tmp_path: Path) -> None:
    trained(tmp_path)
    for name in ("state.json", "0000/log/log.json"):
        (tmp_path / name).unlink()
    with pytest.raises(DamagedError, match=r"fleetx 0\.1\.0 wrote none"):
        opened(tmp_path)


def test_a_delta_is_nothing_to_begin_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = trained(None)
    for delta in (False, True):
        folder = tmp_path / str(delta)
        answer = here.call(ME, {"method": "save", "folder": str(folder), "delta": delta})
        saves.write_list(folder, [answer], delta=delta)
        add(here, 50, [100])
    Save.opened(tmp_path / "False").require_full("this")
    with pytest.raises(ValueError, match=r"is a delta .* fleet\.load_persistables\("):
        opened(None).preload(tmp_path / "True", None)
    with pytest.raises(ValueError, match="is a delta"):
        SavedRows(tmp_path / "True")
    monkeypatch.setattr(servers, "_server", lambda call: None)
    with pytest.raises(ValueError, match=r"init_server\(\): .* is a delta and holds only the rows"):
        fleet.init_server(str(tmp_path / "True"))


def test_a_damaged_save_serves_no_model(tmp_path: Path) -> None:
    folder = saved(tmp_path / "save")
    options = TableOptions(name="t", dim=DIM)
    batch = IdBatch.of(np.array([7]), 1)
    assert SavedRows(folder).look_up(options, batch, None, train=False)[0, 0] == 6
    flip(folder / "t" / "server-0" / "rows-00000.safetensors", 0.99)
    with pytest.raises(DamagedError):
        SavedRows(folder).look_up(options, batch, None, train=False)


def test_who_waits_for_a_row_and_who_left_have_checksums_too(tmp_path: Path) -> None:
    here = opened(tmp_path)
    spec = SparseSpec(name="t", dim=DIM, rule=SGD(1.0), entry=CountFilterEntry(3))
    here.call(ME, {"method": "create", "kind": "sparse", "spec": spec.to_plain()})
    logged = here.sparse(Frame(Op.PULL, 0))
    out, frame = np.empty((1, DIM), np.float32), Frame(Op.PULL, 0, Flag.TRAIN, count=1, body=8)
    for _ in range(3):
        logged.pull(ME, frame, memoryview(np.array([3]).tobytes()), out)
    assert sum(logged.shrink(2) for _ in range(3)) == 1
    logged.pull(ME, frame, memoryview(np.array([4]).tobytes()), out)
    here.checkpoint(force=True)
    for name in ("waiting", "removed"):
        copy = copied(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{name}"))
        flip(copy / "0000" / "saved" / f"{name}.safetensors", 0.9999)
        with pytest.raises(DamagedError, match=rf"{name}\.safetensors is damaged"):
            opened(copy)
