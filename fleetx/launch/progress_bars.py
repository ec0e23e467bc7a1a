"""What a worker prints, with each progress bar as one line: its last state.

A bar is drawn again and again over itself, by carriage returns: in a log that is a line of a
megabyte. Here a line that was drawn over is kept until it is through. Whoever looks at a terminal
sees every state of it.

The runner loads this file by path, before the script: it imports nothing of fleetx or torch.
"""

import io
import os
import re
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

TERMINAL = "FLEETX_TERMINAL"
"""The terminal of the launcher, for the worker whose output it shows."""
MOST = 8
"""Rows that are kept at most, of bars below each other."""
_UP = b"\x1b[A"
_TOKENS = re.compile(rb"\r\n|\r|\n|\x1b\[A|(?:[^\r\n\x1b]|\x1b(?!\[A))+")


class LastStates(io.FileIO):
    """Writes to a descriptor; of a line that is drawn over, its last state alone."""

    def __init__(self, number: int, name: str, show: Callable[[bytes], None]) -> None:
        super().__init__(number, "wb", closefd=False)
        self.name = name
        self._show = show
        self._rows: list[bytes] = []
        """Lines that may be drawn over yet; none while plain text is written."""
        self._at = 0
        self._fresh = False
        """Whether the cursor is at the left, so that what comes next replaces the row."""
        self._drawn = False
        """Whether something was drawn since the cursor came to this row."""
        self._nested = False
        """Whether the cursor goes back to rows above, as it does for bars below each other."""
        self._begun = False
        """Whether the line has a beginning that is written already."""
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._forget)

    # Marked by a comment: what could say `override` is not loaded before the script.
    def write(self, data: Any, /) -> int:  # type: ignore[explicit-override]
        """Take some output."""
        given = bytes(data)
        with self._lock:
            if self._rows or b"\r" in given:
                pairs = pairwise([*_TOKENS.findall(given), b""])
                self._emit(b"".join(self._took(token, following) for token, following in pairs))
                if self._rows:
                    self._show(self._rows[self._at])
            elif given:
                self._begun = not given.endswith(b"\n")
                self._emit(given)
        return len(given)

    def finish(self) -> None:
        """Write what is kept; a bar that was never closed ends here."""
        with self._lock:
            self._emit(self._commit(len(self._rows)))

    def _emit(self, data: bytes) -> None:
        if data:
            super().write(data)

    def _took(self, token: bytes, following: bytes) -> bytes:
        """What is certain after one more token, and the one behind it is known."""
        if not self._rows:
            return self._plain(token, following)
        if token in (b"\n", b"\r\n"):
            return self._down()
        if token == b"\r":
            return self._back()
        if token == _UP:
            return self._up()
        if not (self._rows[self._at] or self._fresh):  # text in a row of its own is no bar
            return self._commit(len(self._rows)) + self._plain(token, following)
        self._rows[self._at] = token if self._fresh else self._rows[self._at] + token
        self._fresh, self._drawn = False, True
        return b""

    def _plain(self, token: bytes, following: bytes) -> bytes:
        self._nested = False
        if token == b"\r":
            self._rows, self._at, self._fresh, self._drawn = [b""], 0, True, False
            return b""
        if following == b"\r" and token != b"\n" and not self._begun:
            self._rows, self._at, self._drawn = [token], 0, True
            return b""
        self._begun = not token.endswith(b"\n")
        return b"\n" if token == b"\r\n" else token

    def _down(self) -> bytes:
        if not self._nested:
            return self._commit(len(self._rows))
        self._at, self._drawn = self._at + 1, False
        self._fresh = self._at < len(self._rows)
        if not self._fresh:
            self._rows.append(b"")
        return self._commit(max(0, len(self._rows) - MOST))

    def _up(self) -> bytes:
        if self._at == 0:
            self._rows.insert(0, b"")  # it was taken for a line that is through
        self._at, self._drawn, self._nested = max(0, self._at - 1), False, True
        return b""

    def _back(self) -> bytes:
        through = b""
        if self._at and self._drawn:  # drawn over where it is: bars above are through
            through, self._nested = self._commit(self._at), False
        self._fresh = True
        return through

    def _commit(self, count: int) -> bytes:
        """The first rows as lines of the log; those without text were wiped off."""
        rows, self._rows = self._rows[:count], self._rows[count:]
        self._at = max(0, self._at - count)
        lines = [row.rstrip() + b"\n" for row in rows if row.strip()]
        if rows and self._begun:  # its line has a beginning
            lines = [b"\r" + lines[0], *lines[1:]] if rows[0].strip() else [b"\n", *lines]
            self._begun = False
        return b"".join(lines)

    def _forget(self) -> None:
        """A forked child: what is kept is written by its parent."""
        self._rows, self._lock = [], threading.RLock()


class Terminal:
    """Shows states of bars, and never waits for whoever looks at them."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)

    def show(self, row: bytes) -> None:
        """Draw, and go back to where the next line of the log will begin."""
        try:
            width = os.get_terminal_size(self._file).columns - 1
            text = row.decode(errors="ignore")[: max(10, width)]
            os.write(self._file, b"\r\x1b[K" + text.encode() + b"\r")
        except OSError:
            return  # it is full, or gone


def install() -> Callable[[], None]:
    """Let the streams of this process keep bars short; call what it returns before the end."""
    show = _drawing(os.environ.pop(TERMINAL, ""))
    kept = [_replace(name, number, show) for name, number in (("stdout", 1), ("stderr", 2))]

    def finish() -> None:
        for stream in kept:
            stream.finish()

    return finish


def _drawing(path: str) -> Callable[[bytes], None]:
    try:
        return Terminal(path).show if path else _show_nobody
    except OSError:
        return _show_nobody


def _show_nobody(row: bytes) -> None:
    """No terminal, or none that may be written to."""


def _replace(name: str, number: int, show: Callable[[bytes], None]) -> LastStates:
    before = getattr(sys, name)
    stream = LastStates(number, f"<{name}>", show)
    text = io.TextIOWrapper(
        stream,  # unbuffered, as `python -u` has it
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=True,
    )
    setattr(sys, name, text)
    return stream
