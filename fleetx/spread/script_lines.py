"""Where a script does something with a tensor that is spread over workers."""

import contextlib
import os
import sys
from pathlib import Path
from types import FrameType

import torch

_BETWEEN = (
    *(f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}"),
    contextlib.__file__,
)
"""Code that no user wrote; folders end here, for that of torchmetrics begins as torch's does."""


def script_line() -> tuple[str, int]:
    """The file and the line of the innermost call outside of torch and this package."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
