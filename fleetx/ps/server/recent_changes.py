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
        self._request = False
        self.forget()

    def forget(self) -> None:
        """From now on any row may have changed since anybody asked."""
        self._changes.clear()
        self._ids = 0
        # By chance, so that a number of before, or from a server that died, is not among them.
        self._last = self._gone = secrets.randbits(62)

    def note(self, ids: Ids, by: int) -> None:
        """Rows were changed; the ids are copied."""
        if not self._request:
            return
        self._last += 1
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
        self._request = True
        if not self._gone <= number <= self._last:
            return self._last, None
        found: list[Ids] = []
        for each, by, ids in reversed(self._changes):
            if each <= number:
                break
            if by != reader:
                found.append(ids)
        return self._last, found
