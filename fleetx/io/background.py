"""The write that goes on while training does: at most one, and what fails in it is heard."""

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Background:
    """Runs one piece of work beside the main thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._watched = False

    def start(self, work: Callable[[], None]) -> None:
        """Begin; whatever ran before has been finished."""
        assert self._thread is None, "finish() comes before the next start()"
        if not self._watched:
            self._watched = True
            atexit.register(self._at_exit)

        def run() -> None:
            try:
                work()
            except BaseException as error:  # whatever it is, finish() raises it
                self._failure = error

        # A daemon: at the end of the process it is awaited by us, who say what failed.
        self._thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether there is work that has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the work, and raise what it raised."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _at_exit(self) -> None:
        """A script that ends right after its last save must not end well if that failed."""
        try:
            self.finish()
        except Exception:
            logger.exception("the checkpoint that was being written when the script ended failed")
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # an exception of an exit function would change no exit code


writing = Background()
"""Of this process, which takes part in one job at a time."""
