"""Records of rows in a file: a dictionary that grows, shrinks, and is read in parts."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.ps.tables.cold_rows import ColdRows
from fleetx.ps.tables.hashing import mixed, parts_of

RECORD = np.dtype([("id", np.int64), ("stamps", np.int64), ("weights", np.int8, (5,))])


def records(ids: Any, seed: int) -> Any:
    made = np.zeros(len(ids), RECORD)
    made["id"], made["stamps"] = ids, (np.arange(len(ids)) + seed) << 34
    made["weights"] = np.random.default_rng(seed).integers(-100, 100, (len(ids), 5))
    return made


def plain(found: Any) -> dict[int, tuple[Any, ...]]:
    return {int(each["id"]): (int(each["stamps"]), *each["weights"].tolist()) for each in found}


@pytest.mark.parametrize("where", ["everywhere", "at the end of the hash range"])
def test_it_is_a_dictionary(where: str) -> None:
    chance = np.random.default_rng(0)
    ids = chance.integers(-(2**63), 2**63 - 1, 30_000)
    ids = ids[:8000] if where == "everywhere" else ids[np.argsort(mixed(ids))[-8000:]]
    ids[0] = 0
    rows, held = ColdRows(None, RECORD), dict[int, tuple[Any, ...]]()
    for turn in range(8):
        given = records(chance.choice(ids[: 1000 * (turn + 1)], 900, replace=False), turn)
        rows.put(given)
        held |= plain(given)
        gone = chance.choice(ids, 300, replace=False)
        assert rows.delete(gone) == len({*gone.tolist()} & {*held})
        for each in gone.tolist():
            held.pop(each, None)
        assert len(rows) == len(held)
        assert plain(rows.find(ids)) == held
    for bits in (0, 3):
        parts = [plain(rows.part(number, bits)) for number in range(1 << bits)]
        assert sum(map(len, parts)) == len(held)
        for number, part in enumerate(parts):
            mine = [each for each in held if not bits or parts_of(np.array([each]), bits) == number]
            assert part == {each: held[each] for each in mine}
    rows.clear()
    assert len(rows) == len(rows.find(ids)) == 0


def test_a_disk_without_room_is_named_and_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetx.ps.tables.cold_rows.GROWTH", 0)
    monkeypatch.setattr("fleetx.ps.tables.cold_rows.SPARE", 8)
    rows = ColdRows(tmp_path, RECORD)
    before = records(np.arange(2000), 0)
    rows.put(before)
    size = rows.nbytes

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    after = records(np.arange(2000, 9000), 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room)
        with pytest.raises(OSError, match=str(tmp_path)) as caught:
            rows.put(after)
    assert caught.value.errno == errno.ENOSPC
    assert rows.nbytes == size
    assert plain(rows.find(np.arange(9000))) == plain(before)
    rows.put(after)
    assert plain(rows.find(np.arange(9000))) == plain(before) | plain(after)
