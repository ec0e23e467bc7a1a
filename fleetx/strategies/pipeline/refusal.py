"""The error of a forward that cannot be followed, with the user's own source line."""

import linecache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

import torch

REMEDY = "put it into a submodule, which is followed as a whole"
_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class Following(Protocol):
    """Whoever follows a forward, as its helpers see it."""

    def refusal(self, what: str, *, remedy: str = REMEDY) -> "TraceError":
        """The error that says where user code is and what it does."""

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, /) -> Any:
        """Note an operation; what stands for its value."""


class TraceError(ValueError):
    """The forward of the model cannot be followed; the message says where and what to do."""

    path: str = ""
    """The submodule whose code could not be followed; empty for the model itself."""


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs code that is neither torch's nor of this package."""
    return not frame.f_code.co_filename.startswith(_OURS)


def users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of user code, from ``frame`` outwards."""
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    return frame


def where(frame: FrameType | None, line: int | None = None) -> str:
    """File, number and text of the line that a frame is at."""
    if frame is None:
        return "the forward of the model"
    file, line = frame.f_code.co_filename, line or frame.f_lineno
    text = linecache.getline(file, line).strip()
    return f"{file}:{line}: {text!r}" if text else f"{file}:{line}"


def place(trace: TracebackType | None) -> str:
    """Where an exception left user code: the innermost line of it."""
    found = None
    while trace is not None:
        if is_users(trace.tb_frame):
            found = where(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return found or where(None)
