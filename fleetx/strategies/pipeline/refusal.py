"""The error of a forward that cannot be followed, with the user's own source line."""

import linecache
from types import TracebackType

from fleetx.record.source_lines import OURS

REMEDY = "put it into a submodule, which is followed as a whole"


class TraceError(ValueError):
    """The forward of the model cannot be followed; the message says where and what to do."""


def place(trace: TracebackType | None) -> str:
    """Where an exception left user code: file, number and text of the innermost line of it."""
    found = "the forward of the model"
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        if not file.startswith(OURS):
            found = line_text(f"{file}:{line}")
        trace = trace.tb_next
    return found


def line_text(line: str) -> str:
    """A line of code, given as file and number, with its text."""
    file, _, number = line.rpartition(":")
    text = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
    return f"{line}: {text!r}" if text else line
