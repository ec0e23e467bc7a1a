"""Where things are computed, in Paddle's words."""

from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from fleetx import roles
from fleetx.compat.notes import note
from fleetx.static.run import devices


class CPUPlace(devices.CPUPlace):
    """The processor."""

    @override
    def __repr__(self) -> str:
        return "Place(cpu)"


class CUDAPinnedPlace(CPUPlace):
    """Memory of the processor that cards read; feeds are pinned where that helps."""


class CUDAPlace(devices.CUDAPlace):
    """A card by its number; without any, the processor, which is said once."""

    def __init__(self, index: Any = 0) -> None:
        super().__init__(int(index))

    @property
    @override
    def device(self) -> torch.device:
        if torch.cuda.is_available():
            return super().device
        note(f"{type(self).__name__}({self.index})", "there is no such card; the CPU computes.")
        return torch.device("cpu")

    def get_device_id(self) -> int:
        """The number."""
        return self.index

    @override
    def __repr__(self) -> str:
        return f"Place(gpu:{self.index})"


class NPUPlace(CUDAPlace):
    """A card of another kind; cards of CUDA or the processor take its place."""


class XPUPlace(CUDAPlace):
    """A card of another kind; cards of CUDA or the processor take its place."""


@dataclass
class AnyPlace:
    """``core.Place()``: becomes another one by ``set_place``."""

    place: Any = None

    def set_place(self, place: Any) -> None:
        """Become this place."""
        self.place = place

    def gpu_device_id(self) -> int:
        """The number of the card."""
        return int(getattr(self.place, "index", 0))

    def is_gpu_place(self) -> bool:
        """Whether it is a card."""
        return isinstance(self.place, devices.CUDAPlace)

    def is_cpu_place(self) -> bool:
        """Whether it is the processor."""
        return isinstance(self.place, devices.CPUPlace)


def is_compiled_with_cuda() -> bool:
    """Whether a card can compute."""
    return torch.cuda.is_available()


def is_compiled_with_npu() -> bool:
    """No other kind of card computes here."""
    return False


is_compiled_with_xpu = is_compiled_with_rocm = is_compiled_with_brpc = is_compiled_with_npu


def get_cuda_device_count() -> int:
    """How many cards this process sees."""
    return torch.cuda.device_count()


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """The places of this process, which has one: others are processes of their own."""
    if device_count not in {None, 1}:
        note(f"cpu_places({device_count})", "a process has one place; fleetrun starts more.")
    return [CPUPlace()]


def cuda_places(device_ids: Any = None) -> list[Any]:
    """The card of this process, which has one: others are processes of their own."""
    if device_ids is not None:
        listed = [device_ids] if isinstance(device_ids, int) else list(device_ids)
        if len(listed) > 1:
            note(f"cuda_places({listed})", "a process has one card; fleetrun starts more.")
        return [CUDAPlace(listed[0] if listed else 0)]
    own = roles.device() if roles.started() else None
    return [CUDAPlace(own.index if own is not None and own.index is not None else 0)]


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """Pinned memory."""
    return [CUDAPinnedPlace()]


def plain(place: Any) -> Any:
    """A place as fleetx takes it."""
    if isinstance(place, AnyPlace):
        return plain(place.place)
    if isinstance(place, (list, tuple)):
        return plain(place[0]) if place else None
    if isinstance(place, str):
        kind, _, index = place.partition(":")
        return CUDAPlace(int(index or 0)) if kind in {"gpu", "npu", "xpu"} else place
    return place
