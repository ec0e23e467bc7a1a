"""The file in which a machine's launcher keeps what its processes tell, for `fleetx watch`.

Lines of JSON, in the order of time. The file never grows beyond a limit: older lines of the kind
that comes twice a second are thinned out, so that it always spans the whole run.
"""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, TextIO

PATTERN = "watch.*.jsonl"
"""One file for each machine, by its place, so that machines may share a folder."""
LIMIT = 8 << 20
"""Bytes."""
DENSE = "ranks"
"""The kind of lines that may be thinned out."""
KEPT = 4
"""The newest of so many parts stays as it is."""
OTHERS = 500
"""Lines of other kinds that are kept, the newest ones."""


def name_of(node_rank: int) -> str:
    """The file of a machine."""
    return PATTERN.replace("*", str(node_rank))


class WatchFile:
    """Takes lines until it is closed. A disk that takes none must not end a job."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self._path, self._limit = path, limit
        self._file: TextIO | None = None
        with contextlib.suppress(OSError):
            self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, **told: Any) -> None:
        """Add a line."""
        line = json.dumps({"kind": kind, "at": round(time.time(), 3), **told})
        with contextlib.suppress(OSError, ValueError):
            if self._file is None:
                return
            self._file.write(line + "\n")
            self._file.flush()
            if self._file.tell() > self._limit:
                self._thin_out()

    def close(self) -> None:
        """Take no more."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._file = None

    def _thin_out(self) -> None:
        """Drop every second of the older lines, in a new file that takes the place of this one."""
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        dense = [at for at, line in enumerate(lines) if f'"kind": "{DENSE}"' in line[:40]]
        others = sorted({*range(len(lines))}.difference(dense))
        dropped = {*dense[1 : len(dense) - len(dense) // KEPT : 2], *others[:-OTHERS]}
        kept = [line for at, line in enumerate(lines) if at not in dropped]
        partial = self._path.with_name(f"{self._path.name}.partial")
        partial.write_text("".join(kept), encoding="utf-8")
        os.replace(partial, self._path)
        if self._file is not None:
            self._file.close()
        self._file = self._path.open("a", encoding="utf-8")
