"""The trackers of one job, on worker 0, and what happens when one of them fails."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

logger = logging.getLogger(__name__)


class Tracks:
    """Hands numbers to all trackers; one that fails ends no job."""

    def __init__(self, trackers: Iterable[Any]) -> None:
        self._trackers = list(trackers)
        self._begun: list[Any] = []
        self._lost: dict[int, int] = {}
        """Position of a tracker -> how many calls of it failed."""

    def begin(self) -> None:
        """Let the trackers begin; all of them or none."""
        try:
            for tracker in self._trackers:
                begin = getattr(tracker, "begin", None)
                if begin is not None:
                    begin()
                self._begun.append(tracker)
        except BaseException:
            self.close()
            raise

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Give each of them the numbers of one step."""
        for at, tracker in enumerate(self._begun):
            try:
                tracker.log(values, step)
            except Exception as error:  # whatever a tracker raises: its service may be away
                self._note(at, error)

    def close(self) -> None:
        """Let go of them, once."""
        trackers, self._begun = self._begun, []
        for at, tracker in enumerate(trackers):
            if lost := self._lost.get(at):
                logger.warning("%s has lost the numbers of %d calls", _name(tracker), lost)
            try:
                getattr(tracker, "close", _nothing)()
            except Exception:
                logger.exception("%s could not be closed", _name(tracker))

    def _note(self, at: int, error: Exception) -> None:
        self._lost[at] = self._lost.get(at, 0) + 1
        if self._lost[at] == 1:
            logger.warning(
                "%s does not take numbers (%s: %s); training goes on, and it is asked again",
                _name(self._begun[at]),
                type(error).__name__,
                error,
            )


def _nothing() -> None:
    """What a tracker that need not be closed does."""


def _name(tracker: Any) -> str:
    return f"the tracker {type(tracker).__name__}"
