"""Buffers of a model, such as running statistics: each worker has its own, and servers have none.

A save holds those of the first worker, so that who returns to it, or begins with it, computes with
the statistics that belong to its parameters.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fleetx.ps.tables.save_folder import MANIFEST
from fleetx.ps.tables.saves import Save
from fleetx.ps.wire.arrays import Array

logger = logging.getLogger(__name__)


class KeptBuffers:
    """Those that the state of a model has."""

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model

    @property
    def exist(self) -> bool:
        """Whether there are any."""
        return bool(self._found())

    def arrays(self, number: int) -> dict[str, Array]:
        """Copies of them, under the number of the model."""
        return {f"{number}/{name}": _as_array(value) for name, value in self._found().items()}

    @torch.no_grad()
    def take(self, saved: Mapping[str, Array], number: int, folder: str) -> None:
        """Set them to what a save holds."""
        missing = []
        for name, value in self._found().items():
            array = saved.get(f"{number}/{name}")
            if array is None:
                missing.append(name)
                continue
            target = _real(value)
            if array.shape != target.shape:
                raise ValueError(
                    f"the save in {folder} holds {name!r} of shape {list(array.shape)}, and the "
                    f"model has {list(target.shape)}; build the model that was saved"
                )
            target.copy_(torch.from_numpy(array))
        if missing:
            logger.warning(
                "%s holds nothing of %s, which stay as they are while parameters are those of the "
                "save: a model in evaluation mode computes with both",
                folder,
                ", ".join(missing[:3]),
            )

    def take_from(self, folder: str, number: int) -> None:
        """Set them to those of a save, if this worker sees it."""
        if not self.exist:
            return
        seen = (Path(folder) / MANIFEST).is_file()
        found = Save.opened(Path(folder)).buffers() if seen else None
        self.take(found or {}, number, folder)

    def _found(self) -> dict[str, Tensor]:
        if self._model is None:
            return {}
        held = self._model.state_dict(keep_vars=True)
        tensors = {name: v for name, v in held.items() if isinstance(v, Tensor)}
        return {name: v for name, v in tensors.items() if not isinstance(v, nn.Parameter)}


def _as_array(tensor: Tensor) -> Array:
    """A copy, in a type that numpy has."""
    tensor = _real(tensor.detach()).cpu()
    if tensor.is_floating_point() and tensor.dtype not in _OF_NUMPY:
        tensor = tensor.float()
    found: Array = tensor.numpy().copy()
    return found


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


_OF_NUMPY = (torch.float16, torch.float32, torch.float64)
