"""What a model has and no server: buffers, such as running statistics, and what nobody trains.

A save holds those of the first worker, so that who returns to it, or begins with it, computes with
the statistics that belong to its parameters, and with the same untrained ones.
"""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fleetx.ps.tables.real_numbers import as_real
from fleetx.ps.tables.save_folder import MANIFEST
from fleetx.ps.tables.saves import Save
from fleetx.ps.wire.arrays import Array

logger = logging.getLogger(__name__)


class KeptBuffers:
    """Those that the state of a model has."""

    def __init__(self, model: nn.Module | None, moved: Collection[Tensor] = ()) -> None:
        """Look at a model.

        Args:
            model: whose state it is.
            moved: the parameters that servers have, or that stand for rows there.
        """
        self._model, self._moved = model, moved

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
            target = as_real(value)
            if array.shape != target.shape:
                raise ValueError(
                    f"the save in {folder} holds {name!r} of shape {list(array.shape)}, and the "
                    f"model has {list(target.shape)}; build the model that was saved"
                )
            target.copy_(torch.from_numpy(array))
        self._say_missing(missing, folder)

    def _say_missing(self, names: list[str], folder: str) -> None:
        held = self._found()
        untrained = [name for name in names if isinstance(held[name], nn.Parameter)]
        if buffers := [name for name in names if name not in untrained]:
            logger.warning(
                "%s holds nothing of %s, which stay as they are while parameters are those of the "
                "save: a model in evaluation mode computes with both",
                folder,
                ", ".join(buffers[:3]),
            )
        if untrained:
            logger.warning(
                "%s does not bring %s, which the optimizer does not have: they stay as they are "
                "while the rest is that of the save, which has them as trained ones, or not at "
                "all. Give the optimizer all parameters, and freeze by requires_grad_(False)",
                folder,
                ", ".join(untrained[:3]),
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
        return {name: v for name, v in tensors.items() if not self._is_elsewhere(v)}

    def _is_elsewhere(self, tensor: Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) and (tensor in self._moved or not tensor.numel())


def _as_array(tensor: Tensor) -> Array:
    """A copy, in a type that numpy has."""
    tensor = as_real(tensor.detach()).cpu()
    if tensor.is_floating_point() and tensor.dtype not in _OF_NUMPY:
        tensor = tensor.float()
    found: Array = tensor.numpy().copy()
    return found


_OF_NUMPY = (torch.float16, torch.float32, torch.float64)
