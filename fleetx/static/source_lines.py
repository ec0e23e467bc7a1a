"""Where in the user's script something was recorded."""

import contextlib
import sys
from pathlib import Path

import torch

OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), contextlib.__file__)


def user_line() -> str:
    """The innermost line of the call stack that is not of torch, this room or a context."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
