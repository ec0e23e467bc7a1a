"""The numbers that a network sees."""

import torch
from torch import Tensor

from fleetx.data.images.views import View


class Normalise:
    """Bytes to floats of mean 0 and variance 1, after they travelled as bytes."""

    def __init__(self, view: View) -> None:
        mean, std = torch.tensor(view.image_mean), torch.tensor(view.image_std)
        self._scale, self._shift = 1 / (255 * std), -mean / std
        self._scales = self._scale.tolist()

    def __call__(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The batch with its images as floats."""
        images, labels = batch
        if self._shift.device != images.device:
            self._scale = self._scale.to(images.device)
            self._shift = self._shift.to(images.device)
        floats = images.to(torch.float32)
        return (self._planes if floats.is_contiguous() else self._pixels)(floats), labels

    def _pixels(self, floats: Tensor) -> Tensor:
        scale, shift = self._scale.view(3, 1, 1), self._shift.view(3, 1, 1)
        return floats.mul_(scale).add_(shift)

    def _planes(self, floats: Tensor) -> Tensor:
        """Where a colour lies in one piece, one pass over it does both."""
        for plane, shift, scale in zip(floats.unbind(1), self._shift, self._scales, strict=True):
            torch.add(shift, plane, alpha=scale, out=plane)
        return floats
