"""The inner loops that this process uses: compiled ones where numba is installed."""

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    active: ModuleType


def __getattr__(name: str) -> ModuleType:
    """``active``, at its first use: loading numba takes a second that few processes need."""
    if name != "active":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from fleetx.ps.tables.kernels import numba_kernels as found
    except ImportError:
        from fleetx.ps.tables.kernels import numpy_kernels as found  # type: ignore[no-redef]
    globals()["active"] = found
    return found
