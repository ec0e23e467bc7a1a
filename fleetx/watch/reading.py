"""Follows files that grow, are replaced by shorter ones, come and go."""

import json
import re
from pathlib import Path
from typing import Any

from fleetx.launch.watch_file import PATTERN

Line = dict[str, Any]
LOG = re.compile(r"(worker|server)log\.\d{1,6}(\.attempt\d{1,6})?")
"""Names of logs that may be shown."""
END = 48 << 10
"""Bytes of the end of a log that are looked at."""
LINES = 200


class Tail:
    """The lines that were added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at, self._file = 0, 0

    def read(self) -> tuple[list[Line], bool]:
        """New lines, and whether the file is another one than before, so that all are new."""
        try:
            with self._path.open("rb") as file:
                status = self._path.stat()
                known, replaced = self._file != 0, False
                if known and (status.st_ino != self._file or status.st_size < self._at):
                    self._at, replaced = 0, True
                self._file = status.st_ino
                file.seek(self._at)
                data = file.read()
        except OSError:
            return [], False
        whole = data.rpartition(b"\n")[0]  # the last line may be half written
        self._at += len(whole) + bool(whole)
        return [line for text in whole.splitlines() if (line := _parsed(text))], replaced


def _parsed(text: bytes) -> Line:
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) and "kind" in line and "at" in line else {}


class Folder:
    """What all machines have written into one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tails: dict[Path, Tail] = {}

    def read(self) -> tuple[list[Line], bool]:
        """New lines in the order of time, and whether everything has to be taken anew."""
        present = sorted(self.path.glob(PATTERN))
        anew = any(path not in present for path in self._tails)
        found: list[Line] = []
        for path in present:
            lines, replaced = self._tails.setdefault(path, Tail(path)).read()
            found += lines
            anew = anew or replaced
        if anew:
            self._tails = {path: Tail(path) for path in present}
            found = [line for tail in self._tails.values() for line in tail.read()[0]]
        return sorted(found, key=lambda line: float(line["at"])), anew

    def logs(self) -> list[str]:
        """The logs there are, those of workers first."""
        names = [path.name for path in self.path.glob("*log.*") if LOG.fullmatch(path.name)]
        return sorted(names, key=lambda name: (name[0] != "w", _numbers(name)))

    def last_lines(self, name: str) -> list[str]:
        """The end of a log; a line that was written over again and again is shown as it is now."""
        if not LOG.fullmatch(name):
            return []
        path = self.path / name
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - END))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        return [_ESCAPES.sub("", line) for line in lines][-LINES:]


_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]
