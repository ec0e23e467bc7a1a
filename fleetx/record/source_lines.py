"""Where in the user's script something was recorded."""

import contextlib
import os
import sys
from pathlib import Path
from types import FrameType

import torch

_PACKAGE = Path(__file__).parent.parent
_ROOMS = ("record", "static", "strategies/pipeline")
OURS = (
    *(f"{_PACKAGE / room}{os.sep}" for room in _ROOMS),
    f"{Path(torch.__file__).parent}{os.sep}",
    contextlib.__file__,
)
"""Code that no user wrote: what records and runs, torch and context managers.

Folders end here, for that of torchvision begins as torch's does.
"""


def user_line() -> str:
    """The innermost line of the call stack outside of torch, this package and contexts."""
    return line_outside(sys._getframe(1))


def line_outside(frame: FrameType) -> str:
    """The same, from some frame of the stack on."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
