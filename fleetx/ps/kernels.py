"""The inner loops that this process uses: compiled ones where numba is installed."""

from types import ModuleType

from fleetx.ps import kernels_numpy

try:
    from fleetx.ps import kernels_numba

    active: ModuleType = kernels_numba
except ImportError:
    active = kernels_numpy
