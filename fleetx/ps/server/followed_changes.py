"""Which rows have changed since a version that outlives the server, for whoever keeps a copy."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from fleetx.ps.server.recent_changes import RecentChanges
from fleetx.ps.wire.arrays import Ids
from fleetx.ps.wire.versions import Version

MOST_IDS, MOST_CHANGES = 1 << 23, 1 << 18
"""What is remembered, at most 64 MiB; who asks later than that is told to copy everything."""

_NOT_NOW = 0
"""In the place of a name, while a history ends and the next one has not begun."""


class FollowedChanges:
    """Changes bear the numbers of their records in the log, which a restarted server redoes.

    So a copy that was made of a server that died goes on from where it was. Nothing is noted before
    somebody asks; after a death, when nobody knows who asked before, it is.
    """

    def __init__(self, folder: Path | None) -> None:
        """Begin, or go on.

        Args:
            folder: of the table, where the name of its history is kept; None keeps none, nor has
                the table a log.
        """
        self._path = None if folder is None else folder / "history"
        self._history = self._kept() or self._drawn()
        self._life = secrets.randbits(63)
        self._recovered = -1
        """The last record that an earlier process left: what it told up to there is true."""
        self._recent = RecentChanges(MOST_IDS, MOST_CHANGES)
        self._unlogged = 0

    def _kept(self) -> int | None:
        if self._path is None or not self._path.is_file():
            return None
        text = self._path.read_text(encoding="ascii", errors="replace")
        return int(text) if text.isdigit() else None  # a new name costs followers one full copy

    def _drawn(self) -> int:
        drawn = 1 + secrets.randbits(62)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".partial")
            partial.write_text(str(drawn), encoding="ascii")
            partial.replace(self._path)
        return drawn

    def note(self, ids: Ids, number: int | None) -> None:
        """Rows were changed, or dropped, by this record; None where nothing is logged."""
        if number is None:
            self._unlogged = number = self._unlogged + 1
        self._recent.note(ids, 0, number)

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Inside, all rows are exchanged; nobody copies meanwhile, and no version counts after it.

        A name that nobody is told lies on the disk until the end: a server that dies here comes
        back with the old rows or the new ones, and copies of both must be made anew.
        """
        self._drawn()
        self._history = _NOT_NOW
        try:
            yield
        finally:
            self._history = self._drawn()

    def begin_replay(self, after: int) -> None:
        """All records behind this number are redone now."""
        self._recent.asked = True
        self._recent.begin_at(after)

    def end_replay(self, last: int) -> None:
        """The log ends with this record."""
        self._recovered = last

    def since(self, version: Version, number: int | None) -> tuple[Version, list[Ids] | None]:
        """What changed after a version.

        Args:
            version: what the caller has.
            number: of the last record in the log; None without a log.

        Returns:
            The version that this leads to; and ids, of which some may come twice, or None: then
            only a full copy helps.
        """
        if self._history == _NOT_NOW:
            raise ValueError("a save is being loaded into this table; ask again when that is done")
        if not self._recent.asked:
            self._recent.begin_at(self._unlogged if number is None else number)
        same_life = version.life == self._life or version.number <= self._recovered
        known = version.history == self._history and same_life
        last, found = self._recent.since(version.number if known else -1, reader=-1)
        return Version(self._history, self._life, last), found
