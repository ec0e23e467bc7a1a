"""Which rows were changed lately, so that a worker with copies need not ask for all of them."""

import secrets
from collections import deque

from fleetx.ps.wire.arrays import Ids

MOST_IDS, MOST_CHANGES = 1 << 22, 1 << 16
"""What is remembered, at most 32 MiB; who asked longer ago takes any row for changed."""


class RecentChanges:
    """Changes of a table in their order, and who made them.

    Nothing is noted before somebody asks, so it costs nothing where nobody has copies.
    """

    def __init__(self, most_ids: int = MOST_IDS, most_changes: int = MOST_CHANGES) -> None:
        self._most_ids, self._most_changes = most_ids, most_changes
        self._changes: deque[tuple[int, int, Ids]] = deque()
        """The number of each change, who made it, and its ids."""
        self.asked = False
        """Whether anybody wants to know."""
        self.forget()

    def forget(self) -> None:
        """From now on any row may have changed since anybody asked."""
        # By chance, so that a number of before, or from a server that died, is not among them.
        self.begin_at(secrets.randbits(62))

    def begin_at(self, number: int) -> None:
        """Nothing is known of what changed up to this number."""
        self._changes.clear()
        self._ids = 0
        self._last = self._gone = number

    def note(self, ids: Ids, by: int, number: int | None = None) -> None:
        """Rows were changed; the ids are copied.

        Args:
            ids: of the rows.
            by: who changed them.
            number: of the change, if changes have numbers elsewhere; else the next one.
        """
        if not self.asked:
            return
        self._last = self._last + 1 if number is None else max(self._last, number)
        self._changes.append((self._last, by, ids.copy()))
        self._ids += len(ids)
        while self._ids > self._most_ids or len(self._changes) > self._most_changes:
            self._gone, _, dropped = self._changes.popleft()
            self._ids -= len(dropped)

    def since(self, number: int, reader: int) -> tuple[int, list[Ids] | None]:
        """What others than the reader have changed after a change.

        Returns:
            The number of the last change, to ask with the next time; and ids, of which some may
            come twice, or None when nobody knows: then any row may have changed.
        """
        self.asked = True
        if not self._gone <= number <= self._last:
            return self._last, None
        found: list[Ids] = []
        for each, by, ids in reversed(self._changes):
            if each <= number:
                break
            if by != reader:
                found.append(ids)
        return self._last, found
