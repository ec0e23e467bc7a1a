"""Workers that leave by themselves when their machine is about to be taken away."""

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from fleetx.launch.console import warn
from fleetx.launch.errors import Interrupted
from fleetx.roles.leaving import ASKS_FOR_RESTART, OVER

__all__ = ["ASKS_FOR_RESTART", "Departure"]


class Departure:
    """The leave that the workers of one attempt take, if they can: they save, and end with 75."""

    def __init__(self, files: Sequence[Path], grace: float) -> None:
        """Watch workers.

        Args:
            files: in which they tell what they do.
            grace: seconds that they may take.
        """
        self._files, self._grace = files, grace
        self._deadline: float | None = None

    @property
    def begun(self) -> bool:
        """Whether workers were told to leave."""
        return self._deadline is not None

    def begin(self) -> bool:
        """Whether workers can leave by themselves now; a second time they cannot."""
        if self.begun or not self._files or not all(map(_leaves, self._files)):
            return False
        self._deadline = time.monotonic() + self._grace
        warn(f"SIGTERM: the workers save, for which they have {self._grace:g} s, and leave")
        return True

    def check(self) -> None:
        """Ends it for workers that take too long."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            warn(
                f"the workers did not leave within {self._grace:g} s; their last checkpoint is the "
                "one before (--grace gives them more time)"
            )
            raise Interrupted(signal.SIGTERM)

    def call_off(self) -> None:
        """The attempt is over: from now on SIGTERM ends workers as it ends any script."""
        for file in self._files:
            try:
                Path(f"{file}{OVER}").touch()
            except OSError:
                continue  # the folder goes when the launcher does


def _leaves(file: Path) -> bool:
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(told.get("leaves")) and told.get("state") == "running"
