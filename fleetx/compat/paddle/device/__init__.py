"""``paddle.device``: where eager tensors are, and the random numbers of cards."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fleetx import roles
from fleetx.compat.notes import note
from fleetx.compat.places import CPUPlace, CUDAPlace, is_compiled_with_cuda
from fleetx.compat.tables import unknown
from fleetx.static.run import devices

__all__ = ["is_compiled_with_cuda"]


@dataclass
class _Chosen:
    device: torch.device | None = None


_chosen = _Chosen()


def _named(device: Any) -> torch.device:
    if isinstance(device, torch.device):
        return device
    if isinstance(device, devices.CPUPlace):
        return torch.device("cpu")
    if not isinstance(device, str):
        return _card(int(getattr(device, "index", 0)))
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    if kind in {"npu", "xpu"}:
        note(f"set_device({device!r})", "cards of CUDA, or the CPU, take the place of others")
    elif kind not in {"gpu", "cuda"}:
        raise ValueError(
            f"set_device({device!r}) names a device that torch does not drive here; write 'cpu', "
            "'gpu' or 'gpu:0'."
        )
    return _card(int(index) if index else None)


def _card(index: int | None) -> torch.device:
    if not torch.cuda.is_available():
        note("a GPU was asked for", "this process sees none, so it computes on the CPU")
        return torch.device("cpu")
    if index is None:
        return roles.device() if roles.started() else torch.device("cuda", 0)
    return torch.device("cuda", min(index, torch.cuda.device_count() - 1))


def set_device(device: Any) -> Any:
    """Make eager tensors on this device from now on: "cpu", "gpu" or "gpu:0"."""
    _chosen.device = _named(device)
    if _chosen.device.type == "cuda":
        torch.cuda.set_device(_chosen.device)
    return place_of(_chosen.device)


def get_device() -> str:
    """The device of eager tensors, as Paddle writes it."""
    found = current_device()
    return "cpu" if found.type == "cpu" else f"gpu:{found.index or 0}"


def current_device() -> torch.device:
    """Where eager tensors are made: as told, else the job's card, else the first one."""
    if _chosen.device is not None:
        return _chosen.device
    if roles.started():
        return roles.device()
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def place_of(device: torch.device) -> Any:
    """A device as a place."""
    return CPUPlace() if device.type == "cpu" else CUDAPlace(device.index or 0)


def device_of(place: Any) -> torch.device:
    """A place, or the name of a device, as torch's; the current device where there is none."""
    return current_device() if place is None else _named(place)


def _never() -> bool:
    """Whether there are devices of a kind that torch does not drive here."""
    return False


is_compiled_with_npu = is_compiled_with_xpu = is_compiled_with_rocm = _never
is_compiled_with_ipu = is_compiled_with_mlu = is_compiled_with_cinn = _never


def is_compiled_with_distribute() -> bool:
    """Whether several workers can train together."""
    return True


def device_count() -> int:
    """How many cards this process sees."""
    return torch.cuda.device_count()


def get_cudnn_version() -> int | None:
    """The version of cuDNN; None without it."""
    return torch.backends.cudnn.version() if torch.cuda.is_available() else None


def get_cuda_rng_state() -> list[Any]:
    """The states of the random numbers of all cards; of the processor where there is none."""
    if torch.cuda.is_available():
        return list(torch.cuda.get_rng_state_all())
    return [torch.get_rng_state()]


def set_cuda_rng_state(state_list: Sequence[Any]) -> None:
    """Put states back that ``get_cuda_rng_state`` gave."""
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(list(state_list))
    else:
        torch.set_rng_state(state_list[0])


def get_rng_state(device: str | None = None) -> list[Any]:
    """The states of the random numbers of the current device."""
    return get_cuda_rng_state() if device != "cpu" else [torch.get_rng_state()]


def set_rng_state(state_list: Sequence[Any], device: str | None = None) -> None:
    """Put states back."""
    if device == "cpu":
        torch.set_rng_state(state_list[0])
    else:
        set_cuda_rng_state(state_list)


def synchronize(device: Any = None) -> None:
    """Wait for the card."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def empty_cache() -> None:
    """Give memory of the card back that nothing uses."""
    torch.cuda.empty_cache()


def forget() -> None:
    """Begin as a new process does."""
    _chosen.device = None


def __getattr__(name: str) -> Any:
    if name == "cuda":  # it uses what stands above
        return importlib.import_module(f"{__name__}.cuda")
    raise unknown(__name__, name, list(globals()))
