"""What is being recorded now, and where in it this thread is."""

import threading
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from fleetx.record.program_graph import ProgramGraph

Source = Callable[[], ProgramGraph]
Sources = tuple[Source, Source]
"""Give the program that is recorded into, and the one of first values."""


class _State(threading.local):
    """What is being recorded; torch itself is changed while there is something.

    Threads record into the same programs, but each runs programs of its own.
    """

    guards: ClassVar[list[Sources]] = []
    """Of every ``program_guard``, and of every call of a module while it is recorded."""
    default: ClassVar[list[Sources]] = []
    """At most one: a script records without a guard."""
    suspended: ClassVar[list[Sources]] = []
    """At most one: a script did so, and then ran a program."""
    depth = 0
    """How many modules of the user's are around the line that runs now."""
    buffers: ClassVar[dict[nn.Module, dict[str, Tensor | None]]] = {}
    """What the buffers of the outermost of them were at its beginning."""
    paused = False
    """Whether a program runs, so that nothing is to be recorded."""

    @property
    def sources(self) -> Sources:
        """The programs that are recorded into."""
        return (self.guards or self.default)[-1]

    @property
    def on(self) -> bool:
        return bool(self.guards or self.default) and not self.paused


state = _State()


class paused:
    """Lets torch compute, while a program runs."""

    def __enter__(self) -> None:
        self._before, state.paused = state.paused, True

    def __exit__(self, *error: object) -> None:
        state.paused = self._before
