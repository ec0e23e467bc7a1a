"""Whether own GPU kernels can be had."""

import importlib.util
from functools import cache


@cache
def has_kernels() -> bool:
    """Whether kernels for GPUs can be compiled here."""
    return importlib.util.find_spec("triton") is not None
