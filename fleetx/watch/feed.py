"""Looks at a folder twice a second, for all browsers together."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fleetx.watch.reading import Folder
from fleetx.watch.watched import Watched

INTERVAL = 0.5


class Feed:
    """What the folder says now; browsers wait for the next turn, and a slow one leaves some out."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path)
        self._watched = Watched()
        self._begun = 0
        """How often the story had to be told from its beginning."""
        self._now: dict[str, Any] = {}
        self._turn = asyncio.Event()
        self._closing = False

    def look(self) -> None:
        """Take what is new."""
        lines, anew = self.folder.read()
        if anew:
            self._watched = Watched()
            self._begun += 1
        for line in lines:
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                self._watched.take(line)  # whoever else writes here must not end the page
        self._now = self._watched.now(time.time())

    def state(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {**self._now, "folder": str(self.folder.path), "history": self._history()}

    async def run(self) -> None:
        """Look until the page is closed."""
        while not self._closing:
            await asyncio.to_thread(self.look)
            self._next_turn()
            await asyncio.sleep(INTERVAL)

    async def close(self) -> None:
        """Show the last of it, and let browsers go."""
        await asyncio.to_thread(self.look)
        self._closing = True
        self._next_turn()

    def _next_turn(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    def _history(self) -> dict[str, Any]:
        return {"points": self._watched.points, "restarts": self._watched.restarts}

    async def events(self, log: str) -> AsyncIterator[str]:
        """Server-sent events for one browser: the story so far, then what changes.

        Args:
            log: the log whose last lines are shown.
        """
        begun, drawn, shown = -1, 0.0, [""]
        while True:
            turn, last = self._turn, self._closing
            if begun != self._begun:
                begun, drawn = self._begun, 0.0
                yield _event("anew", {})
            points = self._watched.since(drawn)
            more = {"points": points, "restarts": self._watched.restarts}
            yield _event("now", {**self._now, **more, "logs": self.folder.logs()})
            drawn = points[-1][0] if points else drawn
            lines = await asyncio.to_thread(self.folder.last_lines, log)
            if lines != shown:
                shown = lines
                yield _event("console", {"log": log, "lines": lines})
            if last:
                yield _event("closed", {})
                return
            await turn.wait()


def _event(name: str, data: dict[str, Any]) -> str:
    # JSON has no line breaks of its own, and a text's are escaped.
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n"
