"""``paddle.fft``: waves in numbers."""

from collections.abc import Callable
from typing import Any

import torch

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.paddle.device import current_device
from fleetx.compat.tensors import wrap


def _one(name: str) -> Callable[..., Any]:
    function = getattr(torch.fft, name)

    def call(
        x: Any, n: int | None = None, axis: int = -1, norm: str = "backward", name: Any = None
    ) -> Any:
        return wrap(function(x, n, axis, norm))

    call.__name__, call.__doc__ = name, f"{name} along an axis."
    return call


def _several(name: str, start: Any) -> Callable[..., Any]:
    function = getattr(torch.fft, name)

    def call(
        x: Any, s: Any = None, axes: Any = start, norm: str = "backward", name: Any = None
    ) -> Any:
        return wrap(function(x, s, None if axes is None else tuple(axes), norm))

    call.__name__, call.__doc__ = name, f"{name} along several axes."
    return call


fft, ifft, rfft, irfft, hfft, ihfft = map(_one, ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
fft2, ifft2, rfft2, irfft2, hfft2, ihfft2 = (
    _several(name, (-2, -1)) for name in ("fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2")
)
fftn, ifftn, rfftn, irfftn, hfftn, ihfftn = (
    _several(name, None) for name in ("fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn")
)


def fftfreq(n: int, d: float = 1.0, dtype: Any = None, name: str | None = None) -> Any:
    """The frequencies of the results of ``fft``."""
    return wrap(torch.fft.fftfreq(n, d, device=current_device()).to(dtype_of(dtype or "float32")))


def rfftfreq(n: int, d: float = 1.0, dtype: Any = None, name: str | None = None) -> Any:
    """The frequencies of the results of ``rfft``."""
    return wrap(torch.fft.rfftfreq(n, d, device=current_device()).to(dtype_of(dtype or "float32")))


def fftshift(x: Any, axes: Any = None, name: str | None = None) -> Any:
    """Frequency 0 in the middle."""
    return wrap(torch.fft.fftshift(x, axes))


def ifftshift(x: Any, axes: Any = None, name: str | None = None) -> Any:
    """Frequency 0 at the start again."""
    return wrap(torch.fft.ifftshift(x, axes))
