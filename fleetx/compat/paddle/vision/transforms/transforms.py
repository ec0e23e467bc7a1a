"""``paddle.vision.transforms``: changes of pictures, as objects."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.compat.paddle.vision.transforms import functional as F


class Compose:
    """Changes one behind the other."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = transforms

    def __call__(self, data: Any) -> Any:
        """All of them."""
        for change in self.transforms:
            data = change(data)
        return data


class BaseTransform:
    """A change of the first of what it is given."""

    def __init__(self, keys: Any = None) -> None:
        self.keys = keys

    def __call__(self, inputs: Any) -> Any:
        """The change."""
        if isinstance(inputs, tuple):
            return (self._apply_image(inputs[0]), *inputs[1:])
        return self._apply_image(inputs)

    def _apply_image(self, image: Any) -> Any:
        raise NotImplementedError


class ToTensor(BaseTransform):
    """Numbers of a picture; bytes come between 0 and 1."""

    def __init__(self, data_format: str = "CHW", keys: Any = None) -> None:
        super().__init__(keys)
        self.data_format = data_format

    @override
    def _apply_image(self, img: Any) -> Any:
        return F.to_tensor(img, self.data_format)


class Normalize(BaseTransform):
    """Less the mean, over the deviation of each channel."""

    def __init__(
        self,
        mean: Any = 0.0,
        std: Any = 1.0,
        data_format: str = "CHW",
        to_rgb: bool = False,
        keys: Any = None,
    ) -> None:
        super().__init__(keys)
        self.mean, self.std = (
            [v] * 3 if isinstance(v, (int, float)) else list(v) for v in (mean, std)
        )
        self.data_format, self.to_rgb = data_format, to_rgb

    @override
    def _apply_image(self, img: Any) -> Any:
        return F.normalize(img, self.mean, self.std, self.data_format, self.to_rgb)


class Transpose(BaseTransform):
    """Axes in another order."""

    def __init__(self, order: Any = (2, 0, 1), keys: Any = None) -> None:
        super().__init__(keys)
        self.order = order

    @override
    def _apply_image(self, img: Any) -> Any:
        found = np.asarray(img)
        return (found[:, :, None] if found.ndim == 2 else found).transpose(self.order)


class Resize(BaseTransform):
    """Another size."""

    def __init__(self, size: Any, interpolation: str = "bilinear", keys: Any = None) -> None:
        super().__init__(keys)
        self.size, self.interpolation = size, interpolation

    @override
    def _apply_image(self, img: Any) -> Any:
        return F.resize(img, self.size, self.interpolation)


class CenterCrop(BaseTransform):
    """The middle."""

    def __init__(self, size: Any, keys: Any = None) -> None:
        super().__init__(keys)
        self.size = size

    @override
    def _apply_image(self, img: Any) -> Any:
        return F.center_crop(img, self.size)


class RandomCrop(BaseTransform):
    """A part at any place."""

    def __init__(
        self,
        size: Any,
        padding: Any = None,
        pad_if_needed: bool = False,
        fill: Any = 0,
        padding_mode: str = "constant",
        keys: Any = None,
    ) -> None:
        super().__init__(keys)
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.padding, self.pad_if_needed = padding, pad_if_needed
        self.fill, self.padding_mode = fill, padding_mode

    @override
    def _apply_image(self, img: Any) -> Any:
        if self.padding is not None:
            img = F.pad(img, self.padding, self.fill, self.padding_mode)
        height, width = F.size_of(img)
        if self.pad_if_needed and (width < self.size[1] or height < self.size[0]):
            more = (max(self.size[1] - width, 0), max(self.size[0] - height, 0))
            img = F.pad(img, more, self.fill, self.padding_mode)
            height, width = F.size_of(img)
        top = random.randint(0, height - self.size[0])
        left = random.randint(0, width - self.size[1])
        return F.crop(img, top, left, *self.size)


class RandomResizedCrop(BaseTransform):
    """A part of any size and shape, in one size."""

    def __init__(
        self,
        size: Any,
        scale: Any = (0.08, 1.0),
        ratio: Any = (3.0 / 4, 4.0 / 3),
        interpolation: str = "bilinear",
        keys: Any = None,
    ) -> None:
        super().__init__(keys)
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.scale, self.ratio, self.interpolation = scale, ratio, interpolation

    @override
    def _apply_image(self, img: Any) -> Any:
        height, width = F.size_of(img)
        for _ in range(10):
            area = random.uniform(*self.scale) * height * width
            shape = float(np.exp(random.uniform(*np.log(self.ratio))))
            wide, high = round((area * shape) ** 0.5), round((area / shape) ** 0.5)
            if 0 < wide <= width and 0 < high <= height:
                top, left = random.randint(0, height - high), random.randint(0, width - wide)
                return F.resize(F.crop(img, top, left, high, wide), self.size, self.interpolation)
        short = min(height, width)
        return F.resize(F.center_crop(img, short), self.size, self.interpolation)


class _Flip(BaseTransform):
    def __init__(self, prob: float = 0.5, keys: Any = None) -> None:
        super().__init__(keys)
        self.prob = prob


class RandomHorizontalFlip(_Flip):
    """Left is right, sometimes."""

    @override
    def _apply_image(self, img: Any) -> Any:
        return F.hflip(img) if random.random() < self.prob else img


class RandomVerticalFlip(_Flip):
    """Top is bottom, sometimes."""

    @override
    def _apply_image(self, img: Any) -> Any:
        return F.vflip(img) if random.random() < self.prob else img


class Pad(BaseTransform):
    """Pixels around."""

    def __init__(
        self, padding: Any, fill: Any = 0, padding_mode: str = "constant", keys: Any = None
    ) -> None:
        super().__init__(keys)
        self.padding, self.fill, self.padding_mode = padding, fill, padding_mode

    @override
    def _apply_image(self, img: Any) -> Any:
        return F.pad(img, self.padding, self.fill, self.padding_mode)


class Grayscale(BaseTransform):
    """Without colours."""

    def __init__(self, num_output_channels: int = 1, keys: Any = None) -> None:
        super().__init__(keys)
        self.num_output_channels = num_output_channels

    @override
    def _apply_image(self, img: Any) -> Any:
        return F.to_grayscale(img, self.num_output_channels)


class _Scaled(BaseTransform):
    def __init__(self, value: float, keys: Any = None) -> None:
        super().__init__(keys)
        self.value = float(value)

    def _amount(self) -> float:
        return random.uniform(max(0.0, 1 - self.value), 1 + self.value)


class BrightnessTransform(_Scaled):
    """Brighter or darker."""

    @override
    def _apply_image(self, img: Any) -> Any:
        found = np.asarray(img)
        return (found * self._amount()).clip(0, 255).astype(found.dtype)


class ContrastTransform(_Scaled):
    """More or less contrast."""

    @override
    def _apply_image(self, img: Any) -> Any:
        found, amount = np.asarray(img), self._amount()
        return (found * amount + found.mean() * (1 - amount)).clip(0, 255).astype(found.dtype)
