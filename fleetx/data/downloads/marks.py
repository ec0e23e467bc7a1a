"""What was found right and unpacked, so that nobody has to read it all again to know."""

import json
from collections.abc import Iterable
from pathlib import Path

from fleetx.data.downloads.checked_files import Listed
from fleetx.io.files import written

NAME = ".download.json"


class Marks:
    """Sums of a folder's files with the sizes and times that the files had then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def missing(self, files: Iterable[Listed]) -> list[Listed]:
        """The files that are not known to be right, or that were touched since."""
        known = self._read()
        return [file for file in files if known.get(file.name) != self._mark(file)]

    def add(self, files: Iterable[Listed]) -> None:
        """Remember that the files are right; the marks of others stay."""
        known = self._read() | {file.name: self._mark(file) for file in files}
        with written(self._folder / NAME) as beside:
            beside.write_text(json.dumps(known, indent=0), encoding="utf-8")

    def _mark(self, file: Listed) -> list[object]:
        try:
            now = (self._folder / file.name).stat()
        except OSError:
            return [file.md5]  # which no mark is equal to
        return [file.md5, now.st_size, now.st_mtime_ns]

    def _read(self) -> dict[str, object]:
        try:
            known = json.loads((self._folder / NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}
