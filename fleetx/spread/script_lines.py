"""Where a script does something with a tensor that is spread over workers."""

import contextlib
import sys
from pathlib import Path
from types import FrameType

import torch

_BETWEEN = (
    *(str(Path(torch.__file__).parent), str(Path(__file__).parents[1])),
    contextlib.__file__,
)
"""Code that no user wrote."""


def script_line() -> tuple[str, int]:
    """The file and the line of the innermost call outside of torch and this package."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
