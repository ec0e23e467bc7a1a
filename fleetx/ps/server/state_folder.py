"""What one server keeps on the disk for its next life, and that all of it is there."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fleetx.ps.tables import log_list, save_folder
from fleetx.ps.tables.checksums import DamagedError

INDEX = "state.json"
BARRIERS = "meetings"
"""The folder of the log of who has met whom; its name is part of the format on the disk."""


class StateFolder:
    """Names the logs of a server, so that one that is missing, or of another, is noticed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._barriers, self._tables, self._ended = "", list[str](), False
        if (folder / INDEX).exists():
            found = save_folder.read_json(folder / INDEX)
            self._barriers, self._ended = str(found["barriers"]), bool(found["ended"])
            self._tables = [str(identity) for identity in found["tables"]]
        elif specs := sorted(folder.glob("[0-9]*/spec.json")):
            raise DamagedError(
                f"{folder / INDEX} is missing, which names the tables beside it, such as "
                f"{specs[0].parent.name} (fleetx 0.1.0 wrote none; its state is not read)"
            )

    @property
    def barriers_place(self) -> Path:
        """Where the log of who has met whom is."""
        return self.folder / BARRIERS

    @property
    def barriers(self) -> Path:
        """The same place, whose log must be there if it ever was."""
        if self._barriers:
            _require_log(self.barriers_place, self._barriers)
        return self.barriers_place

    def place(self, number: int) -> Path:
        """Where a table is kept."""
        return self.folder / f"{number:04d}"

    def tables(self) -> Iterator[Path]:
        """The folders of all tables, in their order; ``DamagedError`` if one is not there."""
        if self._ended:
            return  # a server died while it removed them
        for number, identity in enumerate(self._tables):
            place = self.place(number)
            if not (place / "spec.json").is_file():
                raise DamagedError(f"{place / 'spec.json'} is missing, which says what table it is")
            _require_log(place / "log", identity)
            yield place

    def note_barriers(self, identity: str) -> None:
        """The log of who has met whom was opened."""
        if identity != self._barriers:
            self._barriers = identity
            self._write()

    def note_table(self, identity: str) -> None:
        """All that a new table begins with is on the disk."""
        self._tables.append(identity)
        self._write()

    def note_end(self) -> None:
        """The job is over: what is missing from now on is not missed."""
        self._ended = True
        self._write()

    def remove_index(self) -> None:
        """All tables are removed."""
        with contextlib.suppress(FileNotFoundError):
            (self.folder / INDEX).unlink()

    def _write(self) -> None:
        index = {"barriers": self._barriers, "tables": self._tables, "ended": self._ended}
        save_folder.write_json(self.folder / INDEX, index)


def _require_log(folder: Path, identity: str) -> None:
    """A log that was there must be there, and not another one."""
    path = folder / log_list.NAME
    if not path.is_file():
        raise DamagedError(f"{path} is missing, which names the logs in that folder")
    if (found := log_list.LogList.opened(folder).identity) != identity:
        raise DamagedError(f"{path} is of another log ({found}, and {identity} was there)")
