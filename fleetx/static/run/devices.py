"""Where an executor computes."""

from dataclasses import dataclass

import torch

from fleetx import roles


@dataclass(frozen=True)
class CPUPlace:
    """The processor."""

    @property
    def device(self) -> torch.device:
        """The same as torch says it."""
        return torch.device("cpu")


@dataclass(frozen=True)
class CUDAPlace:
    """A card by its number among the visible ones."""

    index: int = 0

    @property
    def device(self) -> torch.device:
        """The same as torch says it."""
        if not torch.cuda.is_available() or self.index >= torch.cuda.device_count():
            raise ValueError(
                f"static.CUDAPlace({self.index}) does not exist: this process sees "
                f"{torch.cuda.device_count()} CUDA devices; use CPUPlace() or a lower number."
            )
        return torch.device("cuda", self.index)


Place = CPUPlace | CUDAPlace


def device_of(place: Place | torch.device | str | None) -> torch.device:
    """The device of a place; the job's own where none was named."""
    if place is None:
        return roles.device() if roles.started() else torch.device("cpu")
    found = place.device if isinstance(place, Place) else _named(place)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def _named(place: torch.device | str) -> torch.device:
    try:
        return torch.device(place)
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"static.Executor() takes as place static.CPUPlace(), static.CUDAPlace(0) or the name "
            f"of a device, such as 'cuda:0'; got {place!r}"
        ) from error
