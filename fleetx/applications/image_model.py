"""What all models for images have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from typing_extensions import override

from fleetx.data.images.loaders import train_loader, val_loader
from fleetx.data.images.views import View
from fleetx.data.loader import DistributedLoader


class ImageModel(nn.Module, ABC):
    """Images to scores of classes; on a GPU in memory channels last, which convolutions want."""

    @property
    @abstractmethod
    def checkpoints(self) -> list[str]:
        """The submodules that ``recompute_configs["checkpoints"]`` wants."""

    @staticmethod
    def criterion(scores: Tensor, labels: Tensor) -> Tensor:
        """The loss, the mean over the batch."""
        return F.cross_entropy(scores, labels)

    def get_train_dataloader(
        self, local_path: str | Path, batch_size: int = 32, shuffle: bool = True, **options: Any
    ) -> DistributedLoader:
        """This worker's share of the training images; see ``fleetx.data.images.train_loader``.

        Args:
            local_path: the root of the data set.
            batch_size: of this worker.
            shuffle: in an order that the number of the pass decides.
            options: those of ``View``, and of ``image_loader``.
        """
        view, rest = _divided(options)
        return train_loader(local_path, batch_size, view, shuffle=shuffle, **rest)

    def get_val_dataloader(
        self, local_path: str | Path, batch_size: int = 32, **options: Any
    ) -> DistributedLoader:
        """This worker's share of the validation images."""
        view, rest = _divided(options)
        return val_loader(local_path, batch_size, view, **rest)

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Where ``to()`` and ``cuda()`` end up; weights that come to a GPU change their memory."""
        apply: Callable[..., object] = super()._apply
        apply(fn, recurse)
        if on_a_card(self):
            apply(_channels_last, recurse)
        return self


def on_a_card(model: nn.Module) -> bool:
    """Whether convolutions run where they want channels last."""
    return any(parameter.is_cuda for parameter in model.parameters())


def _channels_last(tensor: Tensor) -> Tensor:
    # What sharding has spread stays as it is: its parts are cut from rows of contiguous memory.
    if tensor.dim() != 4 or isinstance(tensor, DTensor):
        return tensor
    return tensor.to(memory_format=torch.channels_last)


def _divided(options: dict[str, Any]) -> tuple[View, dict[str, Any]]:
    known = set(View.__dataclass_fields__)
    chosen = {name: value for name, value in options.items() if name in known}
    return View(**chosen), {name: value for name, value in options.items() if name not in known}
