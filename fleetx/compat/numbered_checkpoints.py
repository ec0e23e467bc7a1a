"""Checkpoints of Paddle 1.8: numbered folders of a file system, the last of which counts."""

import json
from pathlib import Path
from typing import Any

from typing_extensions import override

from fleetx import roles
from fleetx.compat.hdfs import LocalFS

PREFIX, STATUS = "__paddle_fleet_checkpoint__", "fleet_train_status"


class TrainStatus:
    """How far training was."""

    def __init__(self, epoch_no: int = -1) -> None:
        self._epoch_no = int(epoch_no)

    def next(self) -> int:
        """The epoch to go on with."""
        return self._epoch_no + 1

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStatus) and self._epoch_no == other._epoch_no

    @override
    def __hash__(self) -> int:
        return hash(self._epoch_no)


def _numbers(fs: Any, path: str) -> list[int]:
    """The numbers of the checkpoints in a folder, in their order."""
    if not fs.is_exist(path):
        return []
    parts = (Path(name).name.rpartition(".") for name in fs.list_dirs(path))
    return sorted(int(n) for name, _, n in parts if name == PREFIX and n.isdigit())


def _folder(path: str, number: int) -> str:
    return f"{path}/{PREFIX}.{number}"


def save(
    saving: Any,
    path: str,
    status: TrainStatus,
    fs: Any = None,
    *,
    local_cache_path: str = ".cache",
    remain_all: bool = True,
) -> None:
    """Save the next checkpoint; a folder appears under its number when it is whole.

    Args:
        saving: writes the values into a folder, called by all workers.
        path: the folder of checkpoints, on the file system.
        status: how far training was.
        fs: the file system; folders of this machine if None.
        local_cache_path: where files wait that are to be sent to another machine.
        remain_all: keep the checkpoints before; else the last one alone is kept.
    """
    fs, first = fs or LocalFS(), roles.is_first_worker()
    number = (_numbers(fs, path) or [-1])[-1] + 1
    away = fs.need_upload_download()
    written = f"{_folder(local_cache_path if away else path, number)}.tmp"
    if first:
        Path(written).mkdir(parents=True, exist_ok=True)
    saving(written)
    if first:
        text = json.dumps({"epoch_no": status.next() - 1})
        (Path(written) / STATUS).write_text(text, encoding="utf-8")
        if away:
            fs.mkdirs(path)
            fs.upload(written, f"{_folder(path, number)}.tmp")
        fs.mv(f"{_folder(path, number)}.tmp", _folder(path, number))
        if not remain_all:
            clean(path, fs, 1)
    roles.barrier_worker()


def load(
    loading: Any,
    path: str,
    fs: Any = None,
    local_cache_path: str = ".cache",
    ignore_empty: bool = True,
) -> TrainStatus | None:
    """Load the last checkpoint; None where there is none and that is allowed.

    Args:
        loading: reads the values from a folder, called by all workers.
        path: the folder of checkpoints, on the file system.
        fs: the file system; folders of this machine if None.
        local_cache_path: where files go that come from another machine.
        ignore_empty: begin anew where there is no checkpoint.
    """
    fs = fs or LocalFS()
    numbers = _numbers(fs, path)
    if not numbers:
        if ignore_empty:
            return None
        raise FileNotFoundError(
            f"fleet.load_checkpoint({path!r}): there is no folder {PREFIX}.0 or later; pass "
            "ignore_empty=True to begin anew."
        )
    found = _folder(path, numbers[-1])
    if fs.need_upload_download():
        here = _folder(f"{local_cache_path}/{roles.worker_index()}", numbers[-1])
        Path(here).parent.mkdir(parents=True, exist_ok=True)
        fs.download(found, here)
        found = here
    loading(found)
    kept = json.loads((Path(found) / STATUS).read_text(encoding="utf-8"))
    return TrainStatus(kept["epoch_no"])


def clean(path: str, fs: Any = None, remain: int = 2) -> None:
    """Delete all checkpoints but the last ones."""
    fs = fs or LocalFS()
    for number in _numbers(fs, path)[: -max(int(remain), 1)]:
        fs.delete(_folder(path, number))
